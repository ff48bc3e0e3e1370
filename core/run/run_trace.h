// The trace of a run (run.trace): which steps are recorded, and what becomes of them in the folder trace/.
#pragma once

#include <orthant/group.h>
#include <orthant/ops.h>
#include <orthant/settings.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "core/trace/tracing_communicator.h"
#include "core/trace/tracing_stream.h"

namespace orthant {

// One rank's. Without run.trace and run.nvtx nothing stands between the run and its device and communicator.
// Every rank makes the same calls. A trace that cannot be written is warned of, and the run goes on.
// Thread safety: one per rank; not shared. It outlives the device and the groups of the communicator.
class RunTrace {
 public:
  RunTrace(const RunSettings& settings, std::filesystem::path run_directory, Communicator& communicator);

  std::unique_ptr<Device> around(std::unique_ptr<Device> device);
  Communicator& communicator();
  Trace* trace() { return trace_.has_value() ? &*trace_ : nullptr; }  // null: nothing is ever recorded

  // What the following calls need of the run. `stage`: of this rank.
  void connect(Group& world, Stream& stream, int stage);
  // Before each step, and once behind the last. steps: done so far, since the run began. Begins or ends the recording;
  // collective then.
  void at(std::int64_t steps);
  // Ends a recording that is under way: the run stops. Collective.
  void finish();

 private:
  bool wanted() const { return settings_.trace > 0; }
  void begin();
  void take_barriers();
  void join_parts() const;

  const RunSettings settings_;
  const std::filesystem::path folder_;
  Communicator& inner_;
  std::optional<Trace> trace_;
  std::optional<TracingCommunicator> tracing_;
  Group* world_ = nullptr;
  Stream* stream_ = nullptr;
  int stage_ = 0;
  std::int64_t first_ = -1, end_ = -1;  // steps done when it begins and ends; -1: not known yet
  std::vector<std::array<std::int64_t, 2>> barriers_;
};

}  // namespace orthant
