#include "core/run/metrics.h"
#include "core/base/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>

#include "core/base/text_file.h"
#include "core/checkpoint/disk.h"
#include "core/objectives/kinds.h"

namespace orthant {

namespace {

nlohmann::ordered_json routing_of(const MetricsLine& line) {
  const StepReport& report = *line.report;
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < report.routing.size(); ++i) {
    const LayerRouting& of = report.routing[i];
    const LayerCounters& counters = report.layers[i];
    nlohmann::ordered_json& to = layers[std::to_string(of.block)];
    to["choice_entropy"] = of.choice_entropy;
    to["probability_entropy"] = of.probability_entropy;
    to["dead_experts"] = of.dead_experts;
    if (of.margin.has_value()) {
      to["margin"] = *of.margin;
    }
    to["dropped_by_capacity"] = counters.dropped_by_capacity;
    to["dropped_by_chance"] = counters.dropped_by_chance;
    to["grad_norm_loss"] = of.grad_norm_loss;
    to["grad_norm_balance"] = of.grad_norm_balance;
    to["grad_norm_z"] = of.grad_norm_z;
  }
  const std::vector<ValidatedRouting> none;
  for (const ValidatedRouting& of : line.validation.has_value() ? line.validation->routing : none) {
    nlohmann::ordered_json& to = layers[std::to_string(of.block)];
    if (of.churn.has_value()) {
      to["churn"] = *of.churn;
    }
    const auto experts = static_cast<std::size_t>(std::llround(std::sqrt(static_cast<double>(of.pairs.size()))));
    for (std::size_t e = 0; e < experts; ++e) {
      const auto row = of.pairs.begin() + static_cast<std::ptrdiff_t>(e * experts);
      to["coactivation"].push_back(std::vector<std::int64_t>(row, row + static_cast<std::ptrdiff_t>(experts)));
    }
  }
  return layers;
}

void add_bits_per_byte(nlohmann::ordered_json& json, const MetricsLine& line) {
  if (line.text == nullptr) {
    return;
  }
  if (line.text->all.has_value()) {
    json["validation_bits_per_byte"] = bits_per_byte(line.validation->loss, *line.text->all);
  }
  for (const auto& [name, loss] : line.validation->sets) {
    if (const auto bytes = line.text->sets.find(name); bytes != line.text->sets.end()) {
      json["validation_bits_per_byte_sets"][name] = bits_per_byte(loss, bytes->second);
    }
  }
}

}  // namespace

std::string to_json(const MetricsLine& line, const std::string& run_id) {
  const StepReport& r = *line.report;
  nlohmann::ordered_json json;
  json["step"] = r.step + 1;
  if (r.passed_over) {
    json["passed_over"] = true;
  }
  json["loss"] = r.loss;
  json["aux_loss"] = r.aux_loss;
  json["z_loss"] = r.z_loss;
  json["grad_norm"] = r.grad_norm;
  json["lr"] = r.lr;
  json["tokens"] = line.tokens;
  json["batch_sequences"] = line.sequences;
  json["tokens_per_second"] = line.step_seconds > 0 ? static_cast<double>(r.tokens) / line.step_seconds : 0.0;
  json["step_seconds"] = line.step_seconds;
  if (line.save_seconds.has_value()) {
    json["save_seconds"] = *line.save_seconds;
  }
  json["drop_rate"] = r.drop_rate();
  json["expert_load_max_over_mean"] = r.expert_load_max_over_mean();
  json["peak_bytes"] = line.peak.total();
  nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
  for (MemoryKind kind : all_memory_kinds) {
    kinds[name_of(kind)] = line.peak[kind];
  }
  json["peak_by_kind"] = kinds;
  if (line.mfu.has_value()) {
    json["mfu"] = *line.mfu;
  }
  if (line.validation.has_value()) {
    json["validation_loss"] = line.validation->loss;
    for (const auto& [name, loss] : line.validation->sets) {
      json["validation_losses"][name] = loss;
    }
    add_bits_per_byte(json, line);
    for (const auto& [key, value] : line.validation->figures) {
      json["validation_" + key] = value;
    }
  }
  std::int64_t by_capacity = 0, by_chance = 0, zero = 0, choices = 0;
  nlohmann::ordered_json experts = nlohmann::ordered_json::object();
  for (const LayerCounters& layer : r.layers) {
    experts[std::to_string(layer.block)] = layer.kept;
    by_capacity += layer.dropped_by_capacity;
    by_chance += layer.dropped_by_chance;
    zero += layer.zero_choices;
    choices += layer.choices;
  }
  if (!r.layers.empty()) {
    json["dropped_by_capacity"] = by_capacity;
    json["dropped_by_chance"] = by_chance;
    json["expert_tokens"] = experts;
    if (zero > 0) {
      json["zero_expert_share"] = static_cast<double>(zero) / static_cast<double>(choices);
    }
  }
  if (!r.routing.empty()) {
    json["routing"] = routing_of(line);
  }
  if (!line.alarms.empty()) {
    json["alarms"] = line.alarms;
  }
  for (const auto& [name, value] : r.figures) {
    require(!json.contains(name), "an objective reports a figure '{}', which metrics.jsonl has already", name);
    json[name] = value;
  }
  for (const auto& [key, value] : r.metrics) {
    json[key] = value;
  }
  json["run_id"] = run_id;
  return json.dump();
}

namespace {

bool is_up_to(const std::string& line, std::int64_t step) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  return json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
         json["step"].get<std::int64_t>() <= step;
}

void append(const std::filesystem::path& file, const std::string& text) {
  const int out = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  std::string_view left = text;
  bool good = out >= 0;
  while (good && !left.empty()) {
    const ssize_t count = ::write(out, left.data(), left.size());
    good = count >= 0 || errno == EINTR;
    left.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  }
  good = good && ::fsync(out) == 0;
  const int error = errno;
  if (out >= 0) {
    ::close(out);
  }
  require(good, "cannot write '{}': {}", file.string(), std::generic_category().message(error));
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& file, std::int64_t resumed_step, std::string run_id)
    : path_(file), run_id_(std::move(run_id)) {
  const std::string before = read_text_file(file).value_or("");
  std::string kept, moved;
  std::istringstream lines(before);
  for (std::string line; std::getline(lines, line);) {
    const bool keep = is_up_to(line, resumed_step);
    superseded_ += keep ? 0 : 1;
    (keep ? kept : moved) += line + '\n';
  }
  if (kept != before) {
    // On disk before they leave the one file, they are in the other.
    const Disk disk;
    if (!moved.empty()) {
      append(std::filesystem::path(file).replace_extension(".superseded.jsonl"), moved);
      disk.sync_folder(file.parent_path());
    }
    disk.replace_file(file, kept);
    disk.sync_folder(file.parent_path());
  }
  open();
  require(out_.is_open(), "cannot open {} for writing", file.string());
}

// A second descriptor by which the file can be told from another one of its name, and read when it has none.
struct OpenedFile {
  int descriptor;
  explicit OpenedFile(const std::filesystem::path& path) : descriptor(::open(path.c_str(), O_PATH | O_CLOEXEC)) {}
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  ~OpenedFile() {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
  bool is_at(const std::filesystem::path& path) const {
    struct stat there {
    }, own{};
    return ::fstat(descriptor, &own) != 0 ||
           (::stat(path.c_str(), &there) == 0 && there.st_dev == own.st_dev && there.st_ino == own.st_ino);
  }
  // Whether it lies in another folder now: another job has moved the whole run folder, and writes there.
  bool is_elsewhere_than(const std::filesystem::path& path) const {
    struct stat own {};
    if (::fstat(descriptor, &own) != 0 || own.st_nlink == 0) {
      return false;
    }
    std::error_code failed;
    const std::filesystem::path now =
        std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), failed);
    return !failed && now.parent_path() != std::filesystem::weakly_canonical(path.parent_path(), failed);
  }
  // All of it, where it has no name any more; nothing of one that was renamed.
  std::string lines() const {
    struct stat own {};
    if (::fstat(descriptor, &own) != 0 || own.st_nlink != 0) {
      return "";
    }
    std::string text = read_text_file(fmt::format("/proc/self/fd/{}", descriptor)).value_or("");
    text.resize(text.rfind('\n') + 1);
    return text;
  }
};

void MetricsFile::open() {
  out_.open(path_, std::ios::app);
  opened_ = std::make_shared<const OpenedFile>(path_);
}

void MetricsFile::make_anew_if_gone() {
  if (opened_->is_at(path_) || opened_->is_elsewhere_than(path_)) {
    return;
  }
  std::error_code failed;
  if (const auto bytes = std::filesystem::file_size(path_, failed); !failed && bytes > 0) {
    return;  // another job's, which resumes from this run
  }
  const std::string before = opened_->lines();
  try {
    const Disk disk;
    disk.create_folder(path_.parent_path());
    if (!std::filesystem::exists(path_, failed)) {
      disk.replace_file(path_, before);
    }
    std::ofstream fresh(path_, std::ios::app);
    require(fresh.is_open(), "cannot open {} for writing", path_.string());
    out_ = std::move(fresh);
    opened_ = std::make_shared<const OpenedFile>(path_);
    warning_ = fmt::format("{} was removed or renamed while the run goes on: it is written anew{}", path_.string(),
                           before.empty() ? ", from here on" : "");
  } catch (const Error& error) {
    if (!std::exchange(told_of_failure_, true)) {
      warning_ = fmt::format("{}: lines of metrics are lost", error.what());
    }
  }
}

void MetricsFile::sync(const Disk& disk) {
  make_anew_if_gone();
  sync_metrics(path_, disk);
}

void sync_metrics(const std::filesystem::path& file, const Disk& disk) {
  try {
    disk.sync_file(file);
  } catch (const Error&) {
    std::error_code failed;
    if (std::filesystem::exists(file, failed)) {
      throw;
    }
  }
}

void MetricsFile::write(const MetricsLine& line) {
  make_anew_if_gone();
  out_ << to_json(line, run_id_) << '\n';
  require(static_cast<bool>(out_.flush()), "cannot write {}: is the disk full?", path_.string());
}

std::string human_duration(double seconds) {
  const std::int64_t s = std::isfinite(seconds) ? static_cast<std::int64_t>(seconds + 0.5) : 0;
  if (s >= 3600) {
    return fmt::format("{}h{:02}m", s / 3600, s % 3600 / 60);
  }
  return s >= 60 ? fmt::format("{}m{:02}s", s / 60, s % 60) : fmt::format("{}s", s);
}

Progress::Progress(const Settings& settings, std::int64_t first_step, int columns)
    : steps_(settings.run.steps),
      first_step_(first_step),
      batch_(settings.batch),
      objectives_(objectives_of(settings)),
      columns_(columns) {}

std::vector<std::string> Progress::told_of(const std::map<std::string, double>& figures, bool training) const {
  std::vector<std::string> told;
  for (const Objective* objective : objectives_) {
    std::string text;
    try {
      text = objective->told(figures, training);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& failure) {  // of a plugin's, say
      fail("an objective failed to tell its figures of {}: {}", training ? "a step" : "a validation", failure.what());
    }
    if (!text.empty()) {
      told.push_back(std::move(text));
    }
  }
  return told;
}

std::string Progress::text(const MetricsLine& line, double elapsed_seconds) const {
  const StepReport& r = *line.report;
  const std::int64_t done = r.step + 1;
  const double rate = line.step_seconds > 0 ? static_cast<double>(r.tokens) / line.step_seconds : 0;
  const std::int64_t before = sequences_before(batch_, done);  // steps take as long as they have sequences
  const std::int64_t made = before - sequences_before(batch_, first_step_);
  const double left = elapsed_seconds / static_cast<double>(std::max<std::int64_t>(made, 1)) *
                      static_cast<double>(sequences_before(batch_, steps_) - before);
  std::string text = fmt::format("step {}/{}  loss {:.4f}  {} tokens/s  ETA {}", done, steps_, r.loss,
                                 rate >= 10000 ? fmt::format("{:.1f}k", rate / 1000) : fmt::format("{:.0f}", rate),
                                 human_duration(left));
  if (line.mfu.has_value()) {
    text += fmt::format("  MFU {:.1f}%", 100 * *line.mfu);
  }
  for (const std::string& told : told_of(r.figures, true)) {
    text += "  " + told;
  }
  if (!r.layers.empty()) {
    text += fmt::format("  dropped {:.1f}%  load {:.2f}", 100 * r.drop_rate(), r.expert_load_max_over_mean());
  }
  if (line.validation.has_value()) {
    text += fmt::format("  validation {:.4f}", line.validation->loss);
    for (const std::string& told : told_of(line.validation->figures, false)) {
      text += fmt::format(" ({})", told);
    }
    for (const auto& [name, loss] : line.validation->sets) {
      text += fmt::format("  {} {:.4f}", name, loss);
    }
  }
  return text;
}

void Progress::show(const MetricsLine& line, double elapsed_seconds) {
  std::string shown = text(line, elapsed_seconds);
  if (columns_ == 0) {
    put("{}\n", shown);
  } else if (line.validation.has_value()) {  // such a line stays, whole: a terminal wraps it
    put("\r{}\x1b[K\n", shown);
    open_ = false;
  } else {
    shown.resize(std::min<std::size_t>(shown.size(), static_cast<std::size_t>(columns_ - 1)));
    put("\r{}\x1b[K", shown);
    open_ = true;
  }
  std::fflush(stdout);
}

void Progress::finish() {
  if (open_) {
    put("\n");
    std::fflush(stdout);
    open_ = false;
  }
}

}  // namespace orthant
