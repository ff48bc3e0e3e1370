// RunLog: where rank 0 writes what a run tells: metrics.jsonl, TensorBoard's files, Prometheus's, the progress line.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/config/config.h"
#include "core/run/metrics.h"
#include "core/run/prometheus.h"
#include "core/run/tensorboard.h"

namespace orthant {

class RunLog {
 public:
  // step: steps done when this start began. columns: of the terminal; 0: it is none. Says how many lines of an earlier
  // start moved aside. Errors: those of MetricsFile.
  RunLog(const std::filesystem::path& run, const Settings& settings, std::int64_t step, std::string run_id,
         int columns);
  // Alarms of `line` that begin with it are said. seconds: since this start began.
  void write(const MetricsLine& line, const std::vector<std::string>& begun, double seconds);
  // Ends the progress line, so that other text can follow.
  void finish() { progress_.finish(); }
  void sync();

 private:
  void tell_of_metrics();

  std::string run_id_;
  MetricsFile metrics_;
  std::optional<TensorboardFile> tensorboard_;
  std::optional<PrometheusFile> prometheus_;
  Progress progress_;
};

}  // namespace orthant
