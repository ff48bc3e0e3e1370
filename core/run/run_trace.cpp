#include "core/run/run_trace.h"

#include <fmt/ranges.h>

#include "core/base/output.h"
#include "core/checkpoint/disk.h"
#include "core/run/file_work.h"
#include "core/trace/summary.h"
#include "core/trace/tracing_device.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

// A run's first steps allocate, and fill caches: they are not like the others.
constexpr std::int64_t warm_up = 2;

// Enough that one of them finds all ranks awake.
constexpr int clock_barriers = 8;

template <class Work>
void or_warn(Work work) {
  try {
    work();
  } catch (const std::exception& failure) {
    say("orthant: warning: the trace is incomplete: {}", failure.what());
  }
}

}  // namespace

RunTrace::RunTrace(const RunSettings& settings, std::filesystem::path run_directory, Communicator& communicator)
    : settings_(settings), folder_(std::move(run_directory) / "trace"), inner_(communicator) {
  if (wanted() || settings_.nvtx) {
    trace_.emplace(communicator.rank(), settings_.nvtx);
    tracing_.emplace(communicator, *trace_);
  }
}

std::unique_ptr<Device> RunTrace::around(std::unique_ptr<Device> device) {
  return trace_.has_value() ? std::make_unique<TracingDevice>(std::move(device), *trace_) : std::move(device);
}

Communicator& RunTrace::communicator() {
  return tracing_.has_value() ? *tracing_ : inner_;
}

void RunTrace::connect(Group& world, Stream& stream, int stage) {
  world_ = &world;
  stream_ = &stream;
  stage_ = stage;
}

void RunTrace::at(std::int64_t steps) {
  if (!wanted()) {
    return;
  }
  if (first_ < 0) {
    // In a run with fewer steps than the warm-up has, its last ones are traced.
    const std::int64_t usual = std::max(steps, std::min(steps + warm_up, settings_.steps - settings_.trace));
    first_ = settings_.trace_first > 0 ? settings_.trace_first - 1 : usual;
    end_ = first_ + settings_.trace;
    if ((first_ < steps || first_ >= settings_.steps) && world_->rank() == 0) {
      say("orthant: warning: nothing is traced: run.trace_first = {}, {} steps are done already, and run.steps = {}",
          settings_.trace_first, steps, settings_.steps);
    }
  }
  if (steps == first_) {
    begin();
  } else if (steps == end_) {
    finish();
  }
}

void RunTrace::begin() {
  if (world_->rank() == 0) {
    or_warn([&] {
      const FileWork work(inner_, settings_.disk_timeout_seconds);
      std::filesystem::remove_all(folder_);  // of an earlier start
      Disk().create_folder(folder_);
    });
  }
  take_barriers();
  trace_->record(true);
}

void RunTrace::take_barriers() {
  for (int i = 0; i < clock_barriers; ++i) {
    const std::int64_t came = monotonic_ns();
    world_->barrier(*stream_);
    stream_->synchronize();
    barriers_.push_back({came, monotonic_ns()});
  }
}

void RunTrace::finish() {
  if (!trace_.has_value() || !trace_->recording()) {
    return;
  }
  trace_->record(false);
  {
    const FileWork work(inner_, settings_.disk_timeout_seconds);
    or_warn([&] {
      RankTrace own = take(*trace_);
      own.stage = stage_;
      own.barriers = barriers_;
      Disk().replace_file(folder_ / trace_part_name(own.rank), to_part(own));
    });
  }
  world_->barrier(*stream_);
  require_all_alive(*world_, *stream_);
  if (world_->rank() == 0) {
    const FileWork work(inner_, settings_.disk_timeout_seconds);
    or_warn([&] { join_parts(); });
  }
}

// On rank 0. On machines that share no file system it has the parts of its own machine alone.
void RunTrace::join_parts() const {
  std::vector<RankTrace> parts;
  std::vector<int> missing;
  for (int rank = 0; rank < world_->size(); ++rank) {
    const std::filesystem::path part = folder_ / trace_part_name(rank);
    if (std::filesystem::exists(part)) {
      parts.push_back(read_part(part));
    } else {
      missing.push_back(rank);
    }
  }
  if (!missing.empty()) {
    say("orthant: warning: the trace has no part of ranks {}: they do not write to '{}'", fmt::join(missing, ", "),
        folder_.string());
  }
  const JoinedTrace joined = join(std::move(parts));
  const Disk disk;
  disk.replace_file(folder_ / "trace.json", to_chrome_json(joined));
  const TraceSummary summary = summarise(joined);
  disk.replace_file(folder_ / "summary.json", to_json(summary));
  for (const RankTrace& rank : joined.ranks) {
    disk.remove_all(folder_ / trace_part_name(rank.rank));
  }
  put("{}  trace       {}\n", text_of(summary), (folder_ / "trace.json").string());
}

}  // namespace orthant
