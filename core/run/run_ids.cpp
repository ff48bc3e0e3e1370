#include "core/run/run_ids.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <sstream>

#include "core/base/keyed_hash.h"
#include "core/base/list_folder.h"
#include "core/base/text_file.h"

namespace orthant {
namespace {

constexpr const char* run_line = "# run_id = ";
constexpr const char* job_line = "# job_id = ";
constexpr std::size_t longest_head = 1024;

// The id on a line that begins with `name`; empty on any other.
std::string id_on(const std::string& line, const std::string& name) {
  const std::string value = line.starts_with(name) ? line.substr(name.size()) : "";
  return value.size() == 32 && value.find_first_not_of("0123456789abcdef") == std::string::npos ? value : "";
}

std::string shown(const std::string& id) {
  return id.empty() ? "(none)" : id;
}

// Where another job has moved what this one had written to the run folder (NAME.1); empty: nowhere.
std::filesystem::path moved_to(const std::filesystem::path& run_folder, const RunIds& own) {
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::absolute(run_folder, failed);
  const std::string prefix = folder.filename().string() + ".";
  for (const std::filesystem::path& beside : list_folder(folder.parent_path(), failed)) {
    const std::string name = beside.filename().string();
    if (!name.starts_with(prefix) || name.find_first_not_of("0123456789", prefix.size()) != std::string::npos) {
      continue;
    }
    try {
      if (ids_in(beside) == own) {
        return beside;
      }
    } catch (const Error&) {  // somebody else's
    }
  }
  return {};
}

}  // namespace

std::string new_id() {
  return to_hex(random_bytes(16));
}

std::string text_of(const RunIds& ids) {
  return fmt::format("{}{}\n{}{}\n", run_line, ids.run, job_line, ids.job);
}

RunIds ids_in(const std::filesystem::path& run_folder) {
  RunIds ids;
  std::istringstream head(read_text_file(run_folder / "config.resolved.toml", longest_head).value_or(""));
  for (std::string line; std::getline(head, line) && line.starts_with('#');) {
    ids.run = ids.run.empty() ? id_on(line, run_line) : ids.run;
    ids.job = ids.job.empty() ? id_on(line, job_line) : ids.job;
  }
  return ids;
}

std::string why_not_own(const std::filesystem::path& run_folder, const RunIds& own) {
  const RunIds there = ids_in(run_folder);
  const auto is_another = [](const std::string& found, const std::string& mine) {
    return !found.empty() && found != mine;
  };
  const bool others = is_another(there.run, own.run) || is_another(there.job, own.job);
  const std::filesystem::path moved = !others && there != own ? moved_to(run_folder, own) : std::filesystem::path();
  if (!others && moved.empty()) {
    return "";  // its own, or one of which somebody has taken a file: no other job writes there
  }
  return fmt::format(
      "the run folder {} is another job's now: its config.resolved.toml is of run {} and job {}, this is run {}, job "
      "{}{}. Nothing of this job is saved there: give each job a run.name of its own",
      run_folder.string(), shown(there.run), shown(there.job), own.run, own.job,
      moved.empty() ? "" : fmt::format(" (what it had written is in {})", moved.string()));
}

void require_own_folder(const std::filesystem::path& run_folder, const RunIds& own) {
  const std::string reason = why_not_own(run_folder, own);
  if (!reason.empty()) {
    throw ConfigError(reason);  // no restart: it would take the folder from the other job
  }
}

std::string run_id_in(const std::map<std::string, std::string>& state) {
  const auto found = state.find("run_id");
  return found == state.end() ? "" : found->second;
}

void require_same_run(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& state,
                      const std::filesystem::path& run_folder, const std::string& run) {
  const std::string id = run_id_in(state);
  if (!id.empty() && !run.empty() && id != run) {
    throw ConfigError(
        fmt::format("the checkpoint {} is of another run ({}) than its folder {} ({}, by config.resolved.toml): it was "
                    "copied there, "
                    "or two jobs have written there. Move what is not of that run elsewhere; a run of another name can "
                    "start from it by --resume",
                    checkpoint.string(), id, run_folder.string(), run));
  }
}

}  // namespace orthant
