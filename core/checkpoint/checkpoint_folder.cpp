#include <orthant/error.h>

#include <algorithm>
#include <charconv>

#include "core/checkpoint/checkpoint.h"

namespace orthant {
namespace {

struct Candidate {
  std::int64_t step = 0;
  std::string suffix;  // "", ".old" (stepped aside for a save that was killed), ".tmp" (a save that was killed)
  std::filesystem::path path;
};

// The folders of checkpoints under `root`, newest first; of one step the one without suffix first.
std::vector<Candidate> candidates(const std::filesystem::path& root) {
  std::vector<Candidate> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string prefix = "step_";
    Candidate candidate{.suffix = {}, .path = it->path()};
    if (!name.starts_with(prefix)) {
      continue;
    }
    const char* last = name.data() + name.size();
    const auto [end_of_number, failed] = std::from_chars(name.data() + prefix.size(), last, candidate.step);
    candidate.suffix.assign(end_of_number, last);
    if (failed == std::errc() &&
        (candidate.suffix.empty() || candidate.suffix == ".old" || candidate.suffix == ".tmp")) {
      found.push_back(std::move(candidate));
    }
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.step != b.step ? a.step > b.step : a.suffix < b.suffix;
  });
  return found;
}

}  // namespace

std::filesystem::path checkpoint_folder(const std::filesystem::path& root, std::int64_t step) {
  return root / fmt::format("step_{:06}", step);
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& root) {
  const std::vector<Candidate> found = candidates(root);
  const auto newest =
      std::find_if(found.begin(), found.end(), [](const Candidate& candidate) { return candidate.suffix != ".tmp"; });
  return newest == found.end() ? std::nullopt : std::optional(newest->path);
}

std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& root,
                                                       std::vector<std::string>* skipped) {
  for (const Candidate& candidate : candidates(root)) {
    std::string reason = "an unfinished save";
    if (candidate.suffix != ".tmp") {
      try {
        CheckpointReader(candidate.path).verify();
        return candidate.path;
      } catch (const Error& e) {
        reason = e.what();
      }
    }
    if (skipped != nullptr) {
      skipped->push_back(candidate.path.string() + ": " + reason);
    }
  }
  return std::nullopt;
}

void prune_checkpoints(const std::filesystem::path& root, std::int64_t keep, const Disk& disk) {
  require(keep >= 1, "run.keep: {} checkpoints to keep, expected 1 or more", keep);
  std::int64_t complete = 0, newest = -1;
  for (const Candidate& candidate : candidates(root)) {
    if (candidate.suffix == ".tmp") {
      if (complete > 0) {  // newer ones may be a save that other ranks have begun
        disk.remove_all(candidate.path);
      }
      continue;
    }
    try {
      CheckpointReader reader(candidate.path);
    } catch (const Error&) {
      continue;
    }
    // What stepped aside for a save that is complete now counts for nothing.
    const bool replaced = candidate.step == newest;
    newest = candidate.step;
    if (replaced || ++complete > keep) {
      // Renamed first, so that no reader meets a half-removed one.
      std::filesystem::path leaving = checkpoint_folder(root, candidate.step);
      leaving += ".tmp";
      disk.remove_all(leaving);
      disk.rename(candidate.path, leaving);
      disk.remove_all(leaving);
    }
  }
}

}  // namespace orthant
