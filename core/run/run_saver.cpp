#include "core/run/run_saver.h"

#include <chrono>
#include <functional>
#include <utility>

#include "core/base/output.h"
#include "core/layers/saved_bytes.h"
#include "core/run/file_work.h"
#include "core/run/loaded_teacher.h"
#include "core/run/metrics.h"
#include "core/run/remembered_settings.h"
#include "core/run/run_claim.h"
#include "core/run/saving.h"
#include "parallel/host_collectives.h"

namespace orthant {

// Seconds that one save may wait for another without a warning.
constexpr double worth_a_word = 0.1;

// While it lives, training waits for a save.
class RunSaver::Waiting {
 public:
  explicit Waiting(RunSaver& saver) : saver_(saver) {}
  ~Waiting() {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    saver_.waited_ = saver_.waited_.value_or(0) + seconds;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  RunSaver& saver_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

RunSaver::RunSaver(const RunParts& parts, Trace* trace)
    : parts_(parts),
      pruner_(parts.checkpoints(), {parts.settings().run.keep, parts.settings().run.keep_every},
              parts.settings().run.disk_timeout_seconds),
      beside_(parts.checkpoints(), {parts.communicator, parts.world, parts.settings().run.disk_timeout_seconds},
              {.before_manifest = [file = parts.options.run_directory / "metrics.jsonl"] { sync_metrics(file); },
               .before_commit = [this] { require_own_folder(parts_.options.run_directory, ids_); }},
              parts.settings().run.checkpoint_async ? trace : nullptr) {}

void RunSaver::begin(RunIds ids, std::string taught_by) {
  ids_ = std::move(ids);
  taught_by_ = std::move(taught_by);
  const RunSettings& run = parts_.settings().run;
  if (run.checkpoint_async && run.checkpoint_every > 0) {
    beside_.reserve(parts_.stream.device(), most_bytes_saved(parts_.trainer.parameters(), parts_.plan));
  }
}

// A folder that another job moves away while this one saves into it: a file that is missing is not the reason.
template <class Call>
auto RunSaver::in_own_folder(Call call) {
  try {
    return call();
  } catch (const DiskSilent&) {
    throw;  // it would not answer this either
  } catch (const Error&) {
    std::string reason;
    try {
      reason = why_not_own(parts_.options.run_directory, ids_);
    } catch (const Error&) {
      // A disk that fails: its first words say more.
    }
    if (!reason.empty()) {
      throw ConfigError(reason);
    }
    throw;
  }
}

void RunSaver::save(std::int64_t step, std::int64_t tokens, bool ends, RunLog* log) {
  const Waiting waiting(*this);
  in_own_folder([&] {
    if (under_way()) {
      finish_beside(step, ends);
    }
    save_here(step, tokens, parts_.settings().run.checkpoint_async && !ends, log);
  });
}

// next: the step of the save that waits for it, behind which the run may end.
void RunSaver::finish_beside(std::int64_t next, bool ends) {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t before = beside_.step();
  beside_.finish();
  completed();
  if (parts_.first()) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!told_of_waiting_ && !ends && seconds > worth_a_word) {
      told_of_waiting_ = true;
      say("orthant: warning: the checkpoint of step {} has waited {:.2f} s for that of step {}, which was still being "
          "written: the disk is slower than run.checkpoint_every = {} asks of it",
          next, seconds, before, parts_.settings().run.checkpoint_every);
    }
  }
}

std::map<std::string, std::string> RunSaver::state_after(std::int64_t step, std::int64_t tokens) const {
  std::map<std::string, std::string> state = {{"step", std::to_string(step)},
                                              {"tokens", std::to_string(tokens)},
                                              {"seed", std::to_string(parts_.settings().run.seed)},
                                              {"settings", remembered_settings(parts_.config)}};
  state.merge(parts_.trainer.observers().state());
  if (parts_.trainer.passed_over() > 0) {
    state[passed_over_state] = std::to_string(parts_.trainer.passed_over());
  }
  if (parts_.teacher != nullptr) {
    state[teacher_state] = taught_by_;
  }
  if (const std::int64_t every = parts_.settings().run.keep_every; every > 0 && step % every == 0) {
    state[kept_mark] = fmt::format("for good: run.keep_every = {}", every);
  }
  if (parts_.first()) {
    state["run_id"] = ids_.run;
    state["job_id"] = ids_.job;
  }
  return state;
}

// The folder is this job's, and somebody has taken its config.resolved.toml away: weights are saved all the same.
void RunSaver::restore_configuration() {
  const std::filesystem::path& folder = parts_.options.run_directory;
  if (ids_in(folder) == ids_) {
    return;
  }
  try {
    write_resolved(folder, ids_, parts_.config);
    say("orthant: warning: {} was removed or changed while the run goes on: it is written anew",
        (folder / "config.resolved.toml").string());
  } catch (const Error& failed) {
    say("orthant: warning: {}: the checkpoint is saved without it", failed.what());
  }
}

void RunSaver::save_here(std::int64_t step, std::int64_t tokens, bool beside, RunLog* log) {
  const RunSettings& run = parts_.settings().run;
  const std::function<void()> require_own = [this] { require_own_folder(parts_.options.run_directory, ids_); };
  if (parts_.first()) {
    const FileWork work(parts_.communicator, run.disk_timeout_seconds);
    pruner_.wait();  // there is room for one checkpoint more than are kept, not for two
    tell_of_pruning();
    if (!beside) {
      log->sync();  // lines never end before the newest checkpoint
    }
    require_own();
    restore_configuration();
  }
  require_all_alive(parts_.world, parts_.stream);  // nobody writes into another job's folder
  if (beside) {
    beside_.begin(step, parts_.plan, parts_.trainer.parameters(), state_after(step, tokens), parts_.stream);
    return;
  }
  save_checkpoint(parts_.checkpoints(), step, parts_.plan, parts_.trainer.parameters(), state_after(step, tokens),
                  {parts_.communicator, parts_.world, run.disk_timeout_seconds}, parts_.stream, require_own);
  if (parts_.first()) {
    pruner_.start(step);
  }
}

bool RunSaver::done_here() {
  return under_way() && in_own_folder([this] { return !beside_.busy(); });
}

SavingBeside::Word RunSaver::word() {
  return in_own_folder([this] { return beside_.word(); });
}

void RunSaver::hear(const SavingBeside::Word& largest) {
  if (!under_way() || largest[0] != 0) {
    return;
  }
  const Waiting waiting(*this);
  in_own_folder([&] { beside_.hear(largest); });
  if (!under_way()) {
    completed();
  }
}

void RunSaver::completed() {
  took_beside_ = beside_.copy_seconds() + beside_.write_seconds();
  if (parts_.first()) {
    pruner_.start(beside_.step());
  }
}

std::optional<double> RunSaver::take_beside() {
  return std::exchange(took_beside_, std::nullopt);
}

std::optional<double> RunSaver::take_waited() {
  return std::exchange(waited_, std::nullopt);
}

void RunSaver::tell_of_pruning() {
  for (const std::string& warning : pruner_.take_warnings()) {
    say("orthant: warning: {}", warning);
  }
}

void RunSaver::finish() {
  pruner_.wait();
  tell_of_pruning();
}

}  // namespace orthant
