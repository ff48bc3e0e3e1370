// RunSaver: the checkpoints of a run, on one rank: each is written in the run's own folder alone, and old ones leave.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls but those that say otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/run/pruner.h"
#include "core/run/run_ids.h"
#include "core/run/run_log.h"
#include "core/run/run_parts.h"
#include "core/run/saving_beside.h"

namespace orthant {

// In the state of a checkpoint: the steps before it that were passed over in a row, where there are any.
inline constexpr const char* passed_over_state = "passed_over";

class RunSaver {
 public:
  // trace: null where there is none.
  RunSaver(const RunParts& parts, Trace* trace);

  // Whose the folder is, and which teacher the run has (load_teacher; empty: none). Before the first save. Takes the
  // memory for copies (run.checkpoint_async). Errors: Error where there is none.
  void begin(RunIds ids, std::string taught_by);

  // Saves after step `step`, with `tokens` trained on. With run.checkpoint_async it returns when the state is copied,
  // unless the run `ends` behind it. Waits first for a save that is under way. log: the run's, on rank 0. Collective
  // over the world. Errors: those of save_checkpoint; ConfigError where another job has taken the folder.
  void save(std::int64_t step, std::int64_t tokens, bool ends, RunLog* log);

  // Of a save that is written beside the training; errors are those of `save`, of this rank's part:
  // - under_way: it is not complete. The same on all ranks.
  bool under_way() const { return beside_.under_way(); }
  // - done_here: it is not complete, and this rank has nothing left to write. By each rank at any time.
  bool done_here();
  // - word, hear: at a meeting of all ranks, each says its word, and hears the largest numbers.
  SavingBeside::Word word();
  void hear(const SavingBeside::Word& largest);

  // The seconds that training has waited for saves since the last call; nothing where it has not.
  std::optional<double> take_waited();
  // The seconds that a save took which was written beside the training and has become complete since the last call.
  std::optional<double> take_beside();

  // Warnings of prunes that failed. finish: waits for the last prune first. REQUIRES, of finish: no save is under way.
  void tell_of_pruning();
  void finish();

 private:
  class Waiting;
  template <class Call>
  auto in_own_folder(Call call);
  std::map<std::string, std::string> state_after(std::int64_t step, std::int64_t tokens) const;
  void finish_beside(std::int64_t next, bool ends);
  void completed();
  void save_here(std::int64_t step, std::int64_t tokens, bool beside, RunLog* log);
  void restore_configuration();

  RunParts parts_;
  Pruner pruner_;
  RunIds ids_;
  std::string taught_by_;
  bool told_of_waiting_ = false;
  std::optional<double> waited_, took_beside_;
  SavingBeside beside_;  // last: its thread asks for the others
};

}  // namespace orthant
