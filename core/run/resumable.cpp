#include "core/run/resumable.h"

#include <fmt/ranges.h>

#include "core/checkpoint/checkpoint.h"

namespace orthant {
namespace {

// Why the checkpoint cannot be used; empty: it can, as far as it was read.
std::string look_at(const NamedCheckpoint& checkpoint, std::uint64_t most_bytes, bool& verified) {
  const CheckpointReader reader(checkpoint.path);
  verified = reader.bytes() <= most_bytes;
  // No share of its files: the manifest and its step.
  return verified ? why_not_usable(checkpoint) : why_not_usable(checkpoint, reader.world(), reader.world() + 1);
}

}  // namespace

Resumable find_resumable(const std::filesystem::path& root, std::uint64_t most_bytes) {
  Resumable found;
  try {
    for (const NamedCheckpoint& checkpoint : checkpoints_in(root)) {
      if (!checkpoint.finished()) {
        continue;
      }
      std::string reason;
      bool readable = true;
      try {
        reason = look_at(checkpoint, most_bytes, found.verified);
      } catch (const CheckpointUnreadable& failed) {
        reason = failed.what();
        readable = false;
      } catch (const Error& damage) {
        reason = damage.what();
      }
      if (reason.empty()) {
        found.checkpoint = checkpoint.path;
        return found;
      }
      found.unusable.push_back(fmt::format("{}: {}", checkpoint.path.string(), reason));
      if (!readable) {
        return found;  // --resume auto does not go behind it
      }
    }
    for (std::string& misnamed : misnamed_in(root)) {
      found.unusable.push_back(std::move(misnamed));
    }
  } catch (const CheckpointUnreadable& failed) {
    found.unusable.emplace_back(failed.what());
  }
  return found;
}

std::string Resumable::to_string() const {
  if (!checkpoint && unusable.empty()) {
    return "no checkpoint was written yet";
  }
  if (!checkpoint) {
    return fmt::format("no checkpoint can be used now: {}", fmt::join(unusable, "; "));
  }
  return fmt::format("its newest {}checkpoint is {}: --resume auto goes on from there{}{}",
                     unusable.empty() ? "" : "undamaged ", checkpoint->string(),
                     verified ? "" : ", unless it finds it damaged",
                     unusable.empty() ? "" : fmt::format(" (not usable: {})", fmt::join(unusable, "; ")));
}

}  // namespace orthant
