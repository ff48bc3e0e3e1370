// SavingBeside: checkpoints that are written while the training goes on (run.checkpoint_async).
//
// Training waits while every rank copies what it writes into the host's memory. A thread of each rank then writes and
// syncs its file. Ranks tell each other at meetings, which the run has anyway, how far they are: when all files are
// there they gather the manifest, and a thread of rank 0 commits it. All collectives are made by the rank's own thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/checkpoint/checkpoint.h"
#include "core/run/file_thread.h"
#include "core/run/saving.h"
#include "core/trace/trace.h"

namespace orthant {

// Thread safety: one per rank; not shared. Every rank makes the same calls but check and busy.
class SavingBeside {
 public:
  // Both called on rank 0, by the thread that commits: when all files are there, before there is a manifest; and as
  // save_checkpoint's, also by the rank's own thread on each rank whose part fails. By throwing they keep the
  // checkpoint from appearing.
  struct Rules {
    std::function<void()> before_manifest = {};
    std::function<void()> before_commit = {};
  };
  // What a rank tells at a meeting. Ranks hear the largest number of all, place by place.
  using Word = std::array<std::int64_t, 2>;

  // trace: null where there is none. All references outlive it.
  SavingBeside(std::filesystem::path root, const SavingRanks& ranks, Rules rules, Trace* trace = nullptr,
               const Disk& disk = Disk());
  // A save that is under way is given up: what it has left is removed where that is possible.
  ~SavingBeside();
  SavingBeside(const SavingBeside&) = delete;
  SavingBeside& operator=(const SavingBeside&) = delete;

  // Takes the memory for copies of at most `bytes` now, and has the system find its pages beside what comes next: the
  // first copy is as quick as the others. Of this rank alone; once, before the first save. Errors: Error where there is
  // no such memory.
  void reserve(Device& device, std::int64_t bytes);

  // Copies what is to be saved, and begins to write it. Collective over the world. REQUIRES: no save is under way.
  // Errors: those of save_checkpoint.
  void begin(std::int64_t step, const Plan& plan, ParamStore& store, const std::map<std::string, std::string>& state,
             Stream& stream);
  // A save is not complete. The same on all ranks.
  bool under_way() const { return phase_ != Phase::none; }
  // Whether this rank still writes. Errors: those of check.
  bool busy();
  std::int64_t step() const { return step_; }  // of the save begun last

  // Fails where this rank's part has failed, or its disk does not answer, after telling the others. Collectives that
  // these are in fail by that then. Errors: Error with the reason.
  void check();
  // A meeting: every rank says its word and hears all. hear is collective over the world where all have written.
  Word word();
  void hear(const Word& largest);
  // Waits until the save that is under way is complete, if one is. Collective over the world. Errors: those of check.
  void finish();

  double copy_seconds() const { return copy_seconds_; }  // of the save begun last
  // Of the save that was completed last, beside the training: of the rank that was slowest, and of the commit.
  double write_seconds() const { return write_seconds_; }

 private:
  enum class Phase { none, writing, committing };
  void start(FileThread::Work work);
  void take();
  void make_room(Device& device, std::int64_t bytes);
  void commit();
  template <class Call>
  auto or_fail(Call call);

  const std::filesystem::path root_;
  const SavingRanks ranks_;
  const Rules rules_;
  Trace* const trace_;
  Track* const track_;  // of the trace
  Stream* stream_ = nullptr;

  Phase phase_ = Phase::none;
  std::int64_t step_ = -1;
  std::shared_ptr<CheckpointWriter> writer_;
  std::map<std::string, std::string> state_;
  std::string part_;      // of the manifest, this rank's, once it has written
  bool working_ = false;  // the thread has work that was not taken
  bool warming_ = false;  // likewise, that of reserve
  double copy_seconds_ = 0, own_seconds_ = 0, slowest_seconds_ = 0, write_seconds_ = 0;

  // The copy, kept from one save to the next. It stays to the end of the process where a disk never answers.
  struct Room {
    Tensor host;
    std::unique_ptr<HostView> view;
  };
  std::unique_ptr<Room> room_;
  FileThread thread_;
};

}  // namespace orthant
