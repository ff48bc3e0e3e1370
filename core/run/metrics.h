// What a run tells: metrics.jsonl for programs, a progress line for people.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/disk.h"
#include "core/run/bytes_per_token.h"
#include "core/train/trainer.h"

namespace orthant {

// One logged step. `report.step` counts from 0; what is written counts the steps done.
struct MetricsLine {
  const StepReport* report = nullptr;
  std::int64_t tokens = 0;     // since the run began
  std::int64_t sequences = 0;  // of the step, all ranks together
  double step_seconds = 0;
  BytesByKind peak;  // of tensors, of the rank that has held most, when it did
  std::optional<Validation> validation;
  std::optional<double> mfu;                // share of the devices' peak that the model's own operations are
  std::vector<std::string> alarms = {};     // core/run/routing_alarms.h
  std::optional<double> save_seconds = {};  // that training has waited for checkpoints since the line before
  const BytesPerToken* text = nullptr;      // of what `validation` is of; null: not known
};

// As one line of JSON; the keys are documented in docs/reference/metrics.md.
std::string to_json(const MetricsLine& line, const std::string& run_id);

struct OpenedFile;

// Appends lines, each flushed to the system. Lines of steps after `resumed_step` (from a run that was interrupted later
// than its checkpoint), and one that a kill cut short, move first: to the end of metrics.superseded.jsonl beside the
// file. A kill in between may leave them in both. A file that is removed or renamed in its folder under the run is made
// anew: with the lines before where it was removed, and they can be had yet. Errors: Error naming the file.
class MetricsFile {
 public:
  MetricsFile(const std::filesystem::path& file, std::int64_t resumed_step, std::string run_id);
  void write(const MetricsLine& line);
  // Until this returns, a power failure may lose lines. Errors: Error naming the file.
  void sync(const Disk& disk = Disk());
  // What has become of the file since the last call, for the user; empty: nothing.
  std::string take_warning() { return std::exchange(warning_, {}); }
  std::int64_t superseded() const { return superseded_; }  // lines that moved

 private:
  void open();
  void make_anew_if_gone();

  std::filesystem::path path_;
  std::string run_id_;
  std::int64_t superseded_ = 0;
  std::ofstream out_;
  std::shared_ptr<const OpenedFile> opened_;  // what out_ writes to
  std::string warning_;
  bool told_of_failure_ = false;
};

// As MetricsFile::sync, by another thread. A file that is not there now is passed over.
void sync_metrics(const std::filesystem::path& file, const Disk& disk = Disk());

// One line that overwrites itself on a terminal `columns` wide; a plain line per logged step otherwise (columns 0).
class Progress {
 public:
  // The catalogue of the settings outlives it.
  Progress(const Settings& settings, std::int64_t first_step, int columns);
  void show(const MetricsLine& line, double elapsed_seconds);
  // Ends the overwritten line, so that other text can follow.
  void finish();

  // What show prints, without line ends.
  std::string text(const MetricsLine& line, double elapsed_seconds) const;

 private:
  // What objectives tell of their figures.
  std::vector<std::string> told_of(const std::map<std::string, double>& figures, bool training) const;

  std::int64_t steps_, first_step_;
  BatchSettings batch_;
  std::vector<const Objective*> objectives_;
  int columns_;
  bool open_ = false;
};

std::string human_duration(double seconds);  // "1h02m", "3m20s", "12s"

}  // namespace orthant
