#include "bench/study/point_run.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <sstream>

#include "core/base/text_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t told_lines = 12;  // of a log

// The program with `words`, the configuration and the point's settings.
std::vector<std::string> run_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads,
                                     const std::vector<std::string>& words = {"launch"}) {
  std::vector<std::string> command = {folder.program.string()};
  command.insert(command.end(), words.begin(), words.end());
  command.push_back(folder.config().string());
  const auto set = [&](const std::string& text) { command.insert(command.end(), {"--set", text}); };
  for (const std::string& text : point.set) {
    set(text);
  }
  set(fmt::format("run.threads={}", threads));
  return command;
}

std::string toml_string(const fs::path& path) {
  return nlohmann::json(path.string()).dump();  // a JSON string is a TOML string too
}

}  // namespace

std::vector<std::string> train_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads) {
  std::vector<std::string> command = run_command(folder, point, threads);
  for (const std::string& text :
       {"run.name=" + toml_string(point.id), "run.directory=" + toml_string(folder.points()), std::string("run.keep=1"),
        std::string("run.time_limit=0"), std::string("run.prometheus=\"\"")}) {
    command.insert(command.end(), {"--set", text});
  }
  command.insert(command.end(), {"--resume", "auto"});
  return command;
}

std::vector<std::string> timing_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads,
                                        std::int64_t steps, const std::string& name) {
  std::vector<std::string> command = run_command(folder, point, threads);
  for (const std::string& text :
       {"run.name=" + toml_string(name), "run.directory=" + toml_string(folder.timing()),
        fmt::format("run.steps={}", steps), std::string("run.log_every=1"), std::string("run.validate_every=0"),
        std::string("run.checkpoint_every=0"), std::string("run.keep=1"), std::string("run.time_limit=0"),
        std::string("run.prometheus=\"\""),
        // A run pays for these on its logged steps alone, and only mixtures do.
        std::string("run.routing_metrics=false"), std::string("run.record_routing=0"),
        // Nothing is learnt: without a warm-up the point's own rate may be too much for the first steps.
        std::string("optimizer.warmup_steps=0"), std::string("optimizer.decay_steps=0"),
        std::string("optimizer.lr=1e-9"), std::string("optimizer.min_lr=0")}) {
    command.insert(command.end(), {"--set", text});
  }
  return command;
}

std::vector<std::string> why_command(const StudyFolder& folder, const GridPoint& point, std::int64_t threads,
                                     std::int64_t steps) {
  std::vector<std::string> command = run_command(folder, point, threads, {"bench", "step"});
  command.insert(command.end(), {"--why", "--json", "--warmup", "3", "--steps", std::to_string(steps)});
  return command;
}

std::vector<nlohmann::json> lines_of_run(const fs::path& run) {
  std::vector<nlohmann::json> all;
  std::istringstream lines(read_text_file(run / "metrics.jsonl").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer()) {
      all.push_back(std::move(json));
    }
  }
  return all;
}

double progress_of(const fs::path& run, std::int64_t steps) {
  const std::vector<nlohmann::json> lines = lines_of_run(run);
  return lines.empty() ? 0 : std::min(1.0, lines.back()["step"].get<double>() / static_cast<double>(steps));
}

bool is_loss(const nlohmann::ordered_json& value) {
  return value.is_number() && value.get<double>() > 0 && value.get<double>() <= largest_loss;
}

nlohmann::ordered_json result_of(const StudyFolder& folder, const GridPoint& point, std::optional<double> seconds) {
  const fs::path run = folder.run_of(point);
  const std::vector<nlohmann::json> lines = lines_of_run(run);
  require(!lines.empty() && lines.back()["step"].get<std::int64_t>() == point.steps, "'{}' does not end with step {}",
          (run / "metrics.jsonl").string(), point.steps);
  nlohmann::ordered_json curve = nlohmann::ordered_json::array();
  double dropped = 0;
  std::int64_t peak = 0;
  for (const nlohmann::json& line : lines) {
    if (line.contains("validation_loss") && line["validation_loss"].is_number()) {
      require(is_loss(line["validation_loss"]),
              "'{}' has the validation loss {} at step {}: a study compares losses above 0 and up to {:g}",
              (run / "metrics.jsonl").string(), line["validation_loss"].dump(), line["step"].dump(), largest_loss);
      curve.push_back({line["step"], line["tokens"], line["validation_loss"]});
    }
    dropped += line.value("drop_rate", 0.0);
    peak = std::max(peak, line.value("peak_bytes", std::int64_t{0}));
  }
  require(!curve.empty() && curve.back()[0] == point.steps,
          "'{}' has no validation_loss in its last line: set run.validate_every", (run / "metrics.jsonl").string());
  return {{"validation_loss", curve.back()[2]},
          {"curve", curve},
          {"train_seconds", seconds ? nlohmann::ordered_json(*seconds) : nlohmann::ordered_json()},
          {"step_seconds", nullptr},
          {"peak_bytes", peak},
          {"drop_rate", dropped / static_cast<double>(lines.size())}};
}

std::vector<double> step_seconds_of(const fs::path& run, std::int64_t skipped) {
  std::vector<double> seconds;
  for (const nlohmann::json& line : lines_of_run(run)) {
    if (line["step"].get<std::int64_t>() > skipped && line.contains("step_seconds")) {
      seconds.push_back(line["step_seconds"]);
    }
  }
  return seconds;
}

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string end_of_log(const fs::path& log) {
  std::vector<std::string> lines;
  std::istringstream in(read_text_file(log).value_or(""));
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) {
      lines.push_back(line);
    }
  }
  std::string text;
  for (std::size_t i = lines.size() - std::min(lines.size(), told_lines); i < lines.size(); ++i) {
    text += (text.empty() ? "" : "\n") + lines[i];
  }
  return text;
}

}  // namespace orthant
