#include "core/run/run_folder.h"

#include <orthant/error.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

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
    if ((what == SetAside::everything || entry.path().filename() != "logs") && holds_files(entry.path())) {
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

}  // namespace

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
      fs::rename(folder, aside);
    } else {
      fs::create_directory(aside);
      for (const fs::path& entry : entries_to_move(folder, what)) {
        fs::rename(entry, aside / entry.filename());
      }
    }
    return run_folder.parent_path() / aside.filename();
  } catch (const fs::filesystem_error& failed) {
    fail("cannot make room for the run in {}: {}", run_folder.string(), failed.what());
  }
}

}  // namespace orthant
