#include "core/run/saving_beside.h"

#include <orthant/device.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/run/file_work.h"
#include "core/run/saving_parts.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

// As monotonic_ns().
std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// What the thread may still call when the run has been taken down asks its disk first, which then throws.
std::function<void()> asking(const Disk& disk, const std::filesystem::path& root, std::function<void()> rule) {
  return [disk, root, rule = std::move(rule)] {
    disk.before("rule", root);
    if (rule) {
      rule();
    }
  };
}

constexpr double to_commit = 5;  // seconds that a commit gets when the run ends by an error: it is short

}  // namespace

SavingBeside::SavingBeside(std::filesystem::path root, const SavingRanks& ranks, Rules rules, Trace* trace,
                           const Disk& disk)
    : root_(std::move(root)),
      ranks_(ranks),
      rules_(std::move(rules)),
      trace_(trace),
      track_(trace == nullptr ? nullptr : &trace->add_track("files")),
      thread_(ranks.disk_timeout_seconds, disk) {}

SavingBeside::~SavingBeside() {
  if (phase_ == Phase::committing && working_) {
    thread_.wait_for(to_commit);
  }
  if (!thread_.give_up()) {
    // The thread reads them yet.
    [[maybe_unused]] const Room* const room = room_.release();
    [[maybe_unused]] const auto* const writer = new std::shared_ptr<CheckpointWriter>(std::move(writer_));
    return;
  }
  if (phase_ != Phase::none) {
    writer_->abandon(refusal_of(rules_.before_commit, ranks_).empty());
  }
}

// What fails ends the save, on all ranks. A disk that does not answer is asked nothing more.
template <class Call>
auto SavingBeside::or_fail(Call call) {
  try {
    return call();
  } catch (const DiskSilent& failure) {
    const std::string reason =
        fmt::format("rank {}, checkpoint of step {}: {}", ranks_.communicator.rank(), step_, failure.what());
    ranks_.communicator.abort(reason);
    throw DiskSilent(reason);
  } catch (const std::exception& failure) {
    phase_ = Phase::none;
    fail_save(failure.what(), *writer_, rules_.before_commit, ranks_);
  }
}

void SavingBeside::make_room(Device& device, std::int64_t bytes) {
  if (bytes > 0 && (room_ == nullptr || room_->host.elements() < bytes)) {
    room_.reset();
    const MemoryScope as(device, MemoryKind::states);
    const Tensor host = device.host_empty(DType::u8, {bytes});
    room_ = std::make_unique<Room>(Room{host, device.host_view(host, Access::write)});
  }
}

void SavingBeside::reserve(Device& device, std::int64_t bytes) {
  make_room(device, bytes);
  if (room_ != nullptr) {
    thread_.start([room = room_->view->data(), size = room_->view->bytes()] {
      std::memset(room, 0, size);
      return std::string();
    });
    warming_ = true;
  }
}

void SavingBeside::begin(std::int64_t step, const Plan& plan, ParamStore& store,
                         const std::map<std::string, std::string>& state, Stream& stream) {
  require(!under_way(), "internal error: the checkpoint of step {} begins before that of step {} is complete", step,
          step_);
  const Clock::time_point began = Clock::now();
  const std::vector<WrittenRun> runs = written_runs(store, plan, ranks_.world, stream);
  stream.synchronize();
  stream_ = &stream;
  step_ = step;
  state_ = with_layout(state, plan);
  writer_ = std::make_shared<CheckpointWriter>(root_, step, ranks_.world.rank(), ranks_.world.size(), thread_.disk());
  or_fail([&] {
    // What a keeper has on a disk comes from there.
    const FileWork work(ranks_.communicator, ranks_.disk_timeout_seconds);
    add_saved(*writer_, runs, plan, store, {.stream = stream, .step = step});
    const std::size_t bytes = writer_->bytes_to_copy();
    if (warming_) {
      warming_ = false;
      thread_.take();
    }
    make_room(stream.device(), static_cast<std::int64_t>(bytes));
    writer_->copy_into(bytes == 0 ? std::span<std::byte>() : std::span(room_->view->data(), bytes));
    start([writer = writer_.get()] { return writer->finish(); });
  });
  phase_ = Phase::writing;
  slowest_seconds_ = 0;
  copy_seconds_ = std::chrono::duration<double>(Clock::now() - began).count();
}

void SavingBeside::start(FileThread::Work work) {
  thread_.start(std::move(work));
  working_ = true;
}

bool SavingBeside::busy() {
  check();
  return working_;
}

void SavingBeside::check() {
  or_fail([this] {
    if (working_ && !thread_.busy()) {
      take();
    }
  });
}

void SavingBeside::take() {
  working_ = false;
  std::string made = thread_.take();
  const FileThread::Times times = thread_.times();
  own_seconds_ = times.seconds();
  if (trace_ != nullptr && trace_->recording()) {
    track_->add({.name = phase_ == Phase::writing ? "write checkpoint" : "commit checkpoint",
                 .kind = SpanKind::phase,
                 .begin = nanoseconds(times.begin),
                 .end = nanoseconds(times.end),
                 .facts = {.step = step_}});
  }
  if (phase_ == Phase::writing) {
    part_ = std::move(made);
  }
}

SavingBeside::Word SavingBeside::word() {
  if (!under_way()) {
    return {0, 0};
  }
  check();
  return {working_ ? 1 : 0, working_ ? 0 : std::llround(1e6 * own_seconds_)};
}

void SavingBeside::hear(const Word& largest) {
  // Where a rank has failed, numbers may be any: what this one has to do is known here.
  if (!under_way() || working_ || largest[0] != 0) {
    return;
  }
  const double seconds = 1e-6 * static_cast<double>(largest[1]);
  if (phase_ == Phase::writing) {
    slowest_seconds_ = seconds;
    commit();
    return;
  }
  phase_ = Phase::none;
  write_seconds_ = slowest_seconds_ + seconds;
  writer_.reset();
}

// From here on rank 0 alone has something to do.
void SavingBeside::commit() {
  own_seconds_ = 0;
  or_fail([this] {
    std::vector<std::string> parts = gather_texts(part_, ranks_.world, *stream_);
    part_.clear();
    if (ranks_.world.rank() == 0) {
      start([parts = std::move(parts), writer = writer_.get(), state = state_,
             before_manifest = asking(thread_.disk(), root_, rules_.before_manifest),
             before_commit = asking(thread_.disk(), root_, rules_.before_commit)] {
        before_manifest();
        return writer->commit(parts, state, before_commit).string();
      });
    }
    phase_ = Phase::committing;
  });
}

void SavingBeside::finish() {
  while (under_way()) {
    if (working_) {
      or_fail([this] {
        const FileWork work(ranks_.communicator, ranks_.disk_timeout_seconds);
        take();
      });
    }
    const Word own = word();
    std::vector<std::int64_t> all(own.begin(), own.end());
    all_reduce_values(all, ReduceOp::max, ranks_.world, *stream_);
    require_all_alive(ranks_.world, *stream_);
    hear({all[0], all[1]});
  }
}

}  // namespace orthant
