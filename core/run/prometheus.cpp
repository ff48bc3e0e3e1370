#include "core/run/prometheus.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include <orthant/error.h>

#include "core/base/output.h"

namespace orthant {
namespace {

constexpr std::string_view first_text = "# TYPE orthant_";

std::string metric_name(std::string_view key) {
  std::string name = "orthant_";
  for (const unsigned char c : key) {
    name += std::isalnum(c) != 0 ? static_cast<char>(c) : '_';
  }
  return name;
}

std::string label(std::string_view name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  for (const char c : value) {
    text += c == '\n' ? "\\n" : c == '"' ? "\\\"" : c == '\\' ? "\\\\" : std::string(1, c);
  }
  return text + "\"";
}

void add_sample(Samples& to, const std::string& name, const std::string& labels, const nlohmann::ordered_json& value) {
  if (value.is_number()) {
    to[fmt::format("{}{{{}}}", name, labels)] = value.get<double>();
  } else if (value.is_null()) {
    to[fmt::format("{}{{{}}}", name, labels)] = std::numeric_limits<double>::quiet_NaN();
  }
}

std::string number_text(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "NaN";
}

std::string text_of(const Samples& samples) {
  std::string text;
  std::string_view last;
  for (const auto& [sample, value] : samples) {
    const std::string_view name = std::string_view(sample).substr(0, sample.find('{'));
    if (name != last) {
      text += fmt::format("# TYPE {} gauge\n", name);
      last = name;
    }
    text += fmt::format("{} {}\n", sample, number_text(value));
  }
  return text;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Whether what lies there may be replaced: nothing, or a file that this wrote. A path that was meant for something else
// costs nobody a file, and root no device.
bool is_ours_or_free(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    return true;
  }
  if (!std::filesystem::is_regular_file(status)) {
    return false;
  }
  std::string first(first_text.size(), ' ');
  std::ifstream in(file, std::ios::binary);
  in.read(first.data(), static_cast<std::streamsize>(first.size()));
  return in.gcount() == 0 || first == first_text;
}

}  // namespace

Samples prometheus_samples(const std::string& line, const std::string& run) {
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(line, nullptr, false);
  require(json.is_object(), "a line of metrics is no JSON object: {}", line);
  const std::string of_run = label("run", run);
  Samples samples;
  for (const auto& [key, value] : json.items()) {
    const std::string name = metric_name(key);
    if (!value.is_object()) {
      add_sample(samples, name, of_run, value);
      continue;
    }
    for (const auto& [member, part] : value.items()) {
      if (!part.is_object()) {
        add_sample(samples, name, of_run + "," + label("of", member), part);
        continue;
      }
      for (const auto& [what, number] : part.items()) {
        add_sample(samples, metric_name(key + "_" + what), of_run + "," + label("layer", member), number);
      }
    }
  }
  return samples;
}

PrometheusFile::PrometheusFile(std::filesystem::path file, std::string run)
    : file_(std::move(file)), run_(std::move(run)) {
  if (!is_ours_or_free(file_)) {
    failed_ = true;
    say("orthant: warning: run.prometheus: '{}' is there and is no file of run.prometheus. It is left as it is, "
        "nothing "
        "is written to it, and the run goes on",
        file_.string());
  }
  set_running(true);
}

PrometheusFile::~PrometheusFile() {
  try {
    set_running(false);
  } catch (const std::exception&) {  // of the memory for its text
  }
}

void PrometheusFile::write(const std::string& line) {
  for (auto& [sample, value] : prometheus_samples(line, run_)) {
    samples_[sample] = value;
  }
  samples_[fmt::format("orthant_line_time_seconds{{{}}}", label("run", run_))] = unix_time();
  replace();
}

void PrometheusFile::set_running(bool running) {
  samples_[fmt::format("orthant_running{{{}}}", label("run", run_))] = running ? 1 : 0;
  replace();
}

// Not synced: after a power failure nobody asks for the loss of now.
void PrometheusFile::replace() {
  if (failed_) {
    return;
  }
  std::filesystem::path beside = file_;
  beside += fmt::format(".{}.new", getpid());  // the collector reads *.prom
  std::ofstream out(beside, std::ios::trunc);
  out << text_of(samples_);
  out.close();
  std::error_code error;
  if (out.good()) {
    std::filesystem::rename(beside, file_, error);
  }
  if (!out.good() || error) {
    failed_ = true;
    std::filesystem::remove(beside, error);
    say("orthant: warning: run.prometheus: '{}' cannot be written; its folder has to be there. Nothing more is written "
        "to it, and the run goes on",
        file_.string());
  }
}

}  // namespace orthant
