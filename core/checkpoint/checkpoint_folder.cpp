#include <orthant/error.h>

#include <algorithm>
#include <charconv>

#include "core/base/list_folder.h"
#include "core/checkpoint/checkpoint.h"

namespace orthant {

std::filesystem::path checkpoint_folder(const std::filesystem::path& root, std::int64_t step) {
  return root / fmt::format("step_{:06}", step);
}

std::optional<NamedCheckpoint> named_checkpoint(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::string prefix = "step_";
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  NamedCheckpoint found{.suffix = {}, .path = path};
  const char* last = name.data() + name.size();
  const auto [end_of_number, failed] = std::from_chars(name.data() + prefix.size(), last, found.step);
  found.suffix.assign(end_of_number, last);
  const bool known = found.suffix.empty() || found.suffix == ".old" || found.suffix == ".tmp";
  return failed == std::errc() && found.step >= 0 && known ? std::optional(found) : std::nullopt;
}

namespace {

// Errors: CheckpointUnreadable where it cannot be listed.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& root) {
  std::error_code error;
  std::vector<std::filesystem::path> found = list_folder(root, error);
  if (error == std::errc::no_such_file_or_directory && !std::filesystem::is_symlink(root)) {
    return found;  // a link to what is not there now is another matter
  }
  if (error) {
    throw CheckpointUnreadable(fmt::format("cannot list the folder '{}': {}", root.string(), error.message()));
  }
  return found;
}

// A link beside what it leads to ("latest") is no other checkpoint.
bool is_link_within(const std::filesystem::path& root, const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::is_symlink(path, failed)) {
    return false;
  }
  const std::filesystem::path target = std::filesystem::canonical(path, failed);
  return !failed && named_checkpoint(target) && std::filesystem::equivalent(target.parent_path(), root, failed);
}

std::string renamed(const std::filesystem::path& path, std::int64_t step) {
  return fmt::format("its manifest is of step {}: the folder was renamed. It can be used by its path: --resume {}",
                     step, path.string());
}

}  // namespace

std::vector<NamedCheckpoint> checkpoints_in(const std::filesystem::path& root) {
  std::vector<NamedCheckpoint> found;
  for (const std::filesystem::path& path : entries_of(root)) {
    if (std::optional<NamedCheckpoint> checkpoint = named_checkpoint(path)) {
      found.push_back(std::move(*checkpoint));
    }
  }
  std::sort(found.begin(), found.end(), [](const NamedCheckpoint& a, const NamedCheckpoint& b) {
    return a.step != b.step ? a.step > b.step : a.suffix < b.suffix;
  });
  return found;
}

std::vector<std::string> misnamed_in(const std::filesystem::path& root) {
  std::vector<std::string> found;
  for (const std::filesystem::path& path : entries_of(root)) {
    std::error_code no_folder;
    if (named_checkpoint(path) || !std::filesystem::exists(path / "manifest.json", no_folder) ||
        is_link_within(root, path)) {
      continue;
    }
    std::string reason;
    try {
      reason = renamed(path, CheckpointReader(path).step());
    } catch (const Error& failed) {
      reason = fmt::format("its name is not that of a step, and it cannot be used: {}", failed.what());
    }
    found.push_back(path.string() + ": " + reason);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string why_not_usable(const NamedCheckpoint& checkpoint, std::int64_t part, std::int64_t parts) {
  try {
    const CheckpointReader reader(checkpoint.path);
    if (reader.step() != checkpoint.step) {
      return renamed(checkpoint.path, reader.step());
    }
    reader.verify(part, parts);
    return "";
  } catch (const CheckpointUnreadable&) {
    throw;
  } catch (const Error& damage) {
    return damage.what();
  }
}

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root,
                                                       std::vector<std::string>* skipped) {
  if (skipped != nullptr) {
    *skipped = misnamed_in(root);
  }
  for (const NamedCheckpoint& checkpoint : checkpoints_in(root)) {
    if (!checkpoint.finished()) {
      continue;
    }
    const std::string reason = why_not_usable(checkpoint);
    if (reason.empty()) {
      return checkpoint.path;
    }
    if (skipped != nullptr) {
      skipped->push_back(checkpoint.path.string() + ": " + reason);
    }
  }
  return std::nullopt;
}

void mark_kept(const std::filesystem::path& checkpoint, const std::string& why, const Disk& disk) {
  if (!is_marked_kept(checkpoint)) {
    disk.replace_file(checkpoint / kept_mark, why + "\n");
    disk.sync_folder(checkpoint);
  }
}

bool is_marked_kept(const std::filesystem::path& checkpoint) {
  std::error_code failed;
  return std::filesystem::exists(checkpoint / kept_mark, failed) || failed;
}

void prune_checkpoints(const std::filesystem::path& root, KeptCheckpoints kept, const Disk& disk, std::int64_t saved) {
  require(kept.newest >= 1, "run.keep: {} checkpoints to keep, expected 1 or more", kept.newest);
  std::int64_t complete = 0, newest = -1;
  std::vector<std::string> failures;
  const auto remove = [&](const NamedCheckpoint& candidate) {
    try {
      std::filesystem::path leaving = checkpoint_folder(root, candidate.step);
      leaving += ".tmp";
      disk.remove_all(leaving);
      if (candidate.path != leaving) {  // renamed first, so that no reader meets a half-removed one
        disk.rename(candidate.path, leaving);
        disk.remove_all(leaving);
      }
    } catch (const Error& failure) {
      failures.emplace_back(failure.what());
    }
  };
  for (const NamedCheckpoint& candidate : checkpoints_in(root)) {
    if (candidate.step > saved) {
      continue;
    }
    if (!candidate.finished()) {
      if (complete > 0) {  // newer ones may be a save that other ranks have begun
        remove(candidate);
      }
      continue;
    }
    try {
      if (CheckpointReader(candidate.path).step() != candidate.step) {
        continue;  // renamed: it does not count, and it is not ours to remove
      }
    } catch (const Error&) {
      continue;
    }
    // What stepped aside for a save that is complete now counts for nothing.
    const bool replaced = candidate.step == newest;
    newest = candidate.step;
    const bool by_rule = kept.every > 0 && candidate.step % kept.every == 0 && !replaced;
    if (by_rule) {
      try {
        mark_kept(candidate.path, fmt::format("for good: run.keep_every = {}", kept.every), disk);
      } catch (const Error& failure) {
        failures.emplace_back(failure.what());
      }
    }
    const bool for_good = by_rule || is_marked_kept(candidate.path);
    if (replaced || (++complete > kept.newest && !for_good)) {
      remove(candidate);
    }
  }
  require(failures.empty(), "{}{}", failures.empty() ? "" : failures.front(),
          failures.size() < 2 ? "" : fmt::format(" (and {} more)", failures.size() - 1));
}

}  // namespace orthant
