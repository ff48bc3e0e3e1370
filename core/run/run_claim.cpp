#include "core/run/run_claim.h"

#include <fmt/format.h>

#include "core/base/output.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "core/config/print.h"
#include "core/run/find_checkpoint.h"
#include "core/run/run_folder.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Of a start that is repeated after it has begun: its own newest checkpoint, else what it began with.
std::string continued(const std::string& resume) {
  if (resume.empty()) {
    return "auto";
  }
  return resume_from(resume).newest ? resume : "auto:" + resume;
}

// Whether the newest checkpoint in the folder is this job's: its config.resolved.toml may have been taken away.
bool has_saved(const fs::path& run_folder, const std::string& job) {
  try {
    for (const NamedCheckpoint& checkpoint : checkpoints_in(run_folder / "checkpoints")) {
      if (checkpoint.finished()) {
        const std::map<std::string, std::string> state = CheckpointReader(checkpoint.path).state();
        const auto id = state.find("job_id");
        return id != state.end() && id->second == job;
      }
    }
  } catch (const Error&) {  // whoever resumes will say
  }
  return false;
}

}  // namespace

RunClaim::RunClaim(fs::path run_folder, const std::string& resume, const std::string& job_id)
    : run_folder_(std::move(run_folder)), by_launcher_(!job_id.empty()) {
  ids_.job = by_launcher_ ? job_id : new_id();
  if (!by_launcher_) {
    lock_ = std::make_unique<RunLock>(run_folder_, ids_.job, RunLock::Holder::this_process);
    if (!lock_->missing().empty()) {
      say("orthant: note: {}", lock_->missing());
    }
  }
  there_ = ids_in(run_folder_);
  const bool begun = there_.job == ids_.job || (by_launcher_ && there_.job.empty() && has_saved(run_folder_, ids_.job));
  resume_ = begun ? continued(resume) : resume;
}

bool RunClaim::is_own(const fs::path& checkpoint) const {
  return !checkpoint.empty() && goes_on_in(run_folder_, fs::absolute(checkpoint).string());
}

void RunClaim::check(const fs::path& checkpoint, const std::map<std::string, std::string>& state) const {
  if (is_own(checkpoint)) {
    require_same_run(checkpoint, state, run_folder_, there_.run);
  }
}

void RunClaim::begin(const Config& config, const fs::path& checkpoint, const std::map<std::string, std::string>& state,
                     std::int64_t step) {
  if (is_own(checkpoint)) {
    ids_.run = there_.run.empty() ? run_id_in(state) : there_.run;
  }
  if (ids_.run.empty()) {
    ids_.run = new_id();
  }
  make_way(step);
  write_resolved(run_folder_, ids_, config);
}

void RunClaim::make_way(std::int64_t step) {
  if (!goes_on_in(run_folder_, resume_)) {
    const bool logs_wait = by_launcher_ && fs::exists(run_folder_ / starting_logs);
    const fs::path aside = set_run_aside(run_folder_, logs_wait ? SetAside::everything : SetAside::all_but_logs);
    if (!aside.empty()) {
      say("orthant: {}", where_kept(aside));
    }
  } else if (!resume_from(resume_).newest) {
    const fs::path aside = set_later_checkpoints_aside(run_folder_ / "checkpoints", step);
    if (!aside.empty()) {
      put("checkpoints of later steps are kept in {}\n", aside.string());
    }
  }
}

void write_resolved(const fs::path& run_folder, const RunIds& ids, const Config& config) {
  const Disk disk;
  disk.create_folder(run_folder);
  disk.replace_file(run_folder / "config.resolved.toml", text_of(ids) + resolved_toml(config));
  disk.sync_folder(run_folder);
}

}  // namespace orthant
