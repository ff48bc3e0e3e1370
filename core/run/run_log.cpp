#include "core/run/run_log.h"

#include "core/base/output.h"

namespace orthant {

RunLog::RunLog(const std::filesystem::path& run, const Settings& settings, std::int64_t step, std::string run_id,
               int columns)
    : run_id_(std::move(run_id)), metrics_(run / "metrics.jsonl", step, run_id_), progress_(settings, step, columns) {
  if (settings.run.tensorboard) {
    tensorboard_.emplace(run / "tensorboard", step);
  }
  if (!settings.run.prometheus.empty()) {
    prometheus_.emplace(settings.run.prometheus, settings.run.name);
  }
  if (const auto lines = metrics_.superseded(); lines > 0) {
    put("{} line{} of metrics.jsonl beyond step {} {} kept in metrics.superseded.jsonl\n", lines, lines == 1 ? "" : "s",
        step, lines == 1 ? "is" : "are");
  }
}

void RunLog::write(const MetricsLine& line, const std::vector<std::string>& begun, double seconds) {
  metrics_.write(line);
  tell_of_metrics();
  if (tensorboard_.has_value()) {
    tensorboard_->write(to_json(line, run_id_));
  }
  if (prometheus_.has_value()) {
    prometheus_->write(to_json(line, run_id_));
  }
  progress_.show(line, seconds);
  for (const std::string& alarm : begun) {
    progress_.finish();
    say("orthant: warning: {}", alarm);
  }
}

void RunLog::sync() {
  metrics_.sync();
  tell_of_metrics();
}

void RunLog::tell_of_metrics() {
  if (const std::string warning = metrics_.take_warning(); !warning.empty()) {
    progress_.finish();
    say("orthant: warning: {}", warning);
  }
}

}  // namespace orthant
