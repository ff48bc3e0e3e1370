#include "core/run/run_folder.h"

#include <fmt/format.h>

#include <orthant/error.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/run/find_checkpoint.h"
#include "core/run/resumable.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Whether there is any file in or below it.
bool holds_files(const fs::path& path) {
  if (!fs::is_directory(fs::symlink_status(path))) {
    return true;
  }
  return std::any_of(fs::directory_iterator(path), fs::directory_iterator(),
                     [](const fs::directory_entry& entry) { return holds_files(entry.path()); });
}

std::vector<fs::path> entries_to_move(const fs::path& folder, SetAside what) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const bool stays = entry.path().filename() == (what == SetAside::everything ? starting_logs : "logs");
    if (!stays && holds_files(entry.path())) {
      entries.push_back(entry.path());
    }
  }
  return entries;
}

// FOLDER.N with the first N after those taken.
fs::path next_name(const fs::path& folder) {
  const std::string prefix = folder.filename().string() + ".";
  int last = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.parent_path())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix)) {
      int number = 0;
      const char* end = name.data() + name.size();
      const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
      last = error == std::errc() && stop == end ? std::max(last, number) : last;
    }
  }
  return folder.parent_path() / (prefix + std::to_string(last + 1));
}

// Moves `entries` to a new folder.
void move_into(const fs::path& aside, const std::vector<fs::path>& entries) {
  fs::create_directory(aside);
  for (const fs::path& entry : entries) {
    fs::rename(entry, aside / entry.filename());
  }
}

// The whole folder in one rename, and a new one for the logs that are being written.
void move_whole(const fs::path& folder, const fs::path& aside) {
  fs::rename(folder, aside);
  if (fs::exists(aside / starting_logs)) {
    fs::create_directory(folder);
    fs::rename(aside / starting_logs, folder / "logs");
  }
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const fs::path within = path.lexically_relative(folder);
  return !within.empty() && *within.begin() != "..";
}

}  // namespace

bool goes_on_in(const fs::path& folder, const std::string& resume) {
  const auto [newest, from] = resume_from(resume);
  if (newest || from.empty()) {
    return newest;
  }
  // Its checkpoints may lie elsewhere, behind a link.
  const fs::path path = fs::weakly_canonical(from);
  return lies_in(path, fs::weakly_canonical(folder)) || lies_in(path, fs::weakly_canonical(folder / "checkpoints"));
}

fs::path set_later_checkpoints_aside(const fs::path& checkpoints, std::int64_t step) {
  try {
    std::vector<fs::path> later;
    if (fs::is_directory(checkpoints)) {
      for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints)) {
        const std::optional<NamedCheckpoint> checkpoint = named_checkpoint(entry.path());
        if (checkpoint && checkpoint->finished() && checkpoint->step > step) {
          later.push_back(entry.path());
        }
      }
    }
    if (later.empty()) {
      return {};
    }
    const fs::path aside = next_name(fs::absolute(checkpoints).lexically_normal());
    move_into(aside, later);
    return checkpoints.parent_path() / aside.filename();
  } catch (const fs::filesystem_error& failed) {
    fail("cannot move the later checkpoints of {}: {}", checkpoints.string(), failed.what());
  }
}

bool holds_earlier_run(const fs::path& folder) {
  try {
    require(!fs::exists(folder) || fs::is_directory(folder), "the run folder {} is a file: give the run another name",
            folder.string());
    fs::remove_all(folder / starting_logs);
    return fs::exists(folder) && !entries_to_move(folder, SetAside::everything).empty();
  } catch (const fs::filesystem_error& failed) {
    fail("cannot look into the run folder {}: {}", folder.string(), failed.what());
  }
}

fs::path set_run_aside(const fs::path& run_folder, SetAside what) {
  try {
    const fs::path folder = fs::absolute(run_folder).lexically_normal();
    require(!fs::exists(folder) || fs::is_directory(folder), "the run folder {} is a file: give the run another name",
            run_folder.string());
    if (!fs::exists(folder) || entries_to_move(folder, what).empty()) {
      return {};
    }
    const fs::path aside = next_name(folder);
    if (what == SetAside::everything) {
      move_whole(folder, aside);
    } else {
      move_into(aside, entries_to_move(folder, what));
    }
    return run_folder.parent_path() / aside.filename();
  } catch (const fs::filesystem_error& failed) {
    fail("cannot make room for the run in {}: {}", run_folder.string(), failed.what());
  }
}

std::string where_kept(const fs::path& aside) {
  const Resumable found = find_resumable(aside / "checkpoints");
  return fmt::format(
      "an earlier run of this name is kept in {}{}", aside.string(),
      found.checkpoint ? fmt::format(" (to go on with it: --resume {})", found.checkpoint->string()) : "");
}

}  // namespace orthant
