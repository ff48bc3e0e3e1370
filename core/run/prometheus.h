// The scalars of metrics.jsonl for Prometheus: a text file that its node exporter's textfile collector reads.
// Source: Prometheus's text-based exposition format, version 0.0.4.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace orthant {

// Samples by name with labels ("orthant_loss{run=\"a\"}"). Values that are not finite are NaN, as metrics.jsonl has no
// other word for them.
using Samples = std::map<std::string, double>;

// The numbers of one line of metrics.jsonl: orthant_KEY{run="RUN"}; of an object within it a sample for each member,
// with the label of="MEMBER"; of "routing" orthant_routing_KEY with layer="LAYER". What is no letter, digit or '_' in a
// key becomes '_'. Lists and texts are left out. Errors: Error where `line` is no JSON object.
Samples prometheus_samples(const std::string& line, const std::string& run);

// The file has the newest value of each sample that any line had, and orthant_running: 1, and 0 once this is gone.
// orthant_line_time_seconds (Unix time) tells a run that was killed or stands still. Readers see a whole file: it is
// replaced. One that cannot be written is warned of once, and nothing more is written; so is what is there and is no
// such file, a device among it: it stays.
class PrometheusFile {
 public:
  PrometheusFile(std::filesystem::path file, std::string run);
  ~PrometheusFile();
  PrometheusFile(const PrometheusFile&) = delete;
  PrometheusFile& operator=(const PrometheusFile&) = delete;

  // `line`: of metrics.jsonl.
  void write(const std::string& line);

 private:
  void set_running(bool running);
  void replace();

  std::filesystem::path file_;
  std::string run_;
  Samples samples_;
  bool failed_ = false;
};

}  // namespace orthant
