// The scalars of metrics.jsonl for TensorBoard: runs/NAME/tensorboard/events.out.tfevents.*
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/run/event_file.h"

namespace orthant {

// The numbers of one line of metrics.jsonl under TensorBoard's tags, which group by what stands before the slash
// (docs/reference/metrics.md). Lists, texts and numbers that are not finite are left out; so is, without routed layers,
// what the router would count. Errors: Error where `line` is no JSON object.
Scalars tensorboard_scalars(const std::string& line);

// A file of this start's own, behind those of earlier ones; lines of theirs beyond `resumed_step` no longer hold. A
// file that cannot be written is warned of once, and nothing more is written: metrics.jsonl is what counts.
class TensorboardFile {
 public:
  TensorboardFile(std::filesystem::path folder, std::int64_t resumed_step);
  // `line`: of metrics.jsonl. Flushed to the system.
  void write(const std::string& line);

 private:
  void append(const std::string& events);

  std::filesystem::path path_;
  std::ofstream out_;
  bool failed_ = false;
};

}  // namespace orthant
