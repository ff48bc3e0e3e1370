#include "core/run/run_saver.h"

#include <functional>
#include <map>
#include <utility>

#include "core/base/output.h"
#include "core/run/file_work.h"
#include "core/run/loaded_teacher.h"
#include "core/run/remembered_settings.h"
#include "core/run/saving.h"
#include "parallel/host_collectives.h"

namespace orthant {

RunSaver::RunSaver(const RunParts& parts)
    : parts_(parts),
      pruner_(parts.checkpoints(), {parts.settings().run.keep, parts.settings().run.keep_every},
              parts.settings().run.disk_timeout_seconds) {}

void RunSaver::begin(RunIds ids, std::string taught_by) {
  ids_ = std::move(ids);
  taught_by_ = std::move(taught_by);
}

// A folder that another job moves away while this one saves into it: a file that is missing is not the reason.
void RunSaver::save(std::int64_t step, std::int64_t tokens, const RunLog* log) {
  try {
    save_anywhere(step, tokens, log);
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

void RunSaver::save_anywhere(std::int64_t step, std::int64_t tokens, const RunLog* log) {
  const RunSettings& run = parts_.settings().run;
  std::map<std::string, std::string> state = {{"step", std::to_string(step)},
                                              {"tokens", std::to_string(tokens)},
                                              {"seed", std::to_string(run.seed)},
                                              {"settings", remembered_settings(parts_.config)}};
  state.merge(parts_.trainer.observers().state());
  if (parts_.trainer.passed_over() > 0) {
    state[passed_over_state] = std::to_string(parts_.trainer.passed_over());
  }
  if (parts_.teacher != nullptr) {
    state[teacher_state] = taught_by_;
  }
  const std::function<void()> require_own = [this] { require_own_folder(parts_.options.run_directory, ids_); };
  if (parts_.first()) {
    const FileWork work(parts_.communicator, run.disk_timeout_seconds);
    pruner_.wait();  // there is room for one checkpoint more than are kept, not for two
    tell_of_pruning();
    log->sync();  // lines never end before the newest checkpoint
    state["run_id"] = ids_.run;
    state["job_id"] = ids_.job;
    require_own();
  }
  require_all_alive(parts_.world, parts_.stream);  // nobody writes into another job's folder
  save_checkpoint(parts_.checkpoints(), step, parts_.plan, parts_.trainer.parameters(), state,
                  {parts_.communicator, parts_.world, run.disk_timeout_seconds}, parts_.stream, require_own);
  if (parts_.first()) {
    pruner_.start(step);
  }
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
