#include "apps/pretrained/run_source.h"

#include <fmt/ranges.h>

#include <optional>

#include "core/checkpoint/model_folder.h"
#include "core/run/saving.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> newest_in(const fs::path& run, const char* what, std::vector<std::string>& skipped) {
  try {
    return latest_checkpoint(run / "checkpoints", &skipped);
  } catch (const CheckpointUnreadable& failed) {
    fail("{}. It may be readable later; to {} another checkpoint, give that one's folder", failed.what(), what);
  }
}

}  // namespace

fs::path named_folder(const fs::path& given) {
  const fs::path path = fs::absolute(given / "").lexically_normal().parent_path();
  if (!fs::is_directory(path)) {
    const fs::path usual = fs::path("runs") / given;
    throw ConfigError(
        fmt::format("'{}' {}: give a run's folder or a checkpoint's{}", given.string(),
                    fs::exists(path) ? "is not a folder" : "does not exist",
                    given.is_relative() && fs::is_directory(usual) ? ", here '" + usual.string() + "'" : ""));
  }
  return path;
}

RunSource find_run_source(const fs::path& given, const char* what) {
  const fs::path path = named_folder(given);
  RunSource source;
  if (is_checkpoint(path)) {
    source = {path, run_of(path) / "config.resolved.toml", {}};
  } else {
    std::vector<std::string> skipped;
    const auto latest = newest_in(path, what, skipped);
    if (!latest.has_value()) {
      throw ConfigError(fmt::format("'{}' has no complete checkpoint under checkpoints/{}{}{}", given.string(),
                                    skipped.empty() ? "" : "; passed over:\n  ", fmt::join(skipped, "\n  "),
                                    hint_of_published(path)));
    }
    source = {*latest, path / "config.resolved.toml", skipped};
  }
  if (!fs::exists(source.config)) {
    throw ConfigError(
        fmt::format("'{}' is missing: it tells the shape of the model, and the run writes it", source.config.string()));
  }
  return source;
}

CheckpointReader weights_reader(const std::filesystem::path& checkpoint, bool averages) {
  if (!averages) {
    return CheckpointReader(checkpoint);
  }
  CheckpointReader reader(checkpoint, averages_prefix);
  if (!has_averages(reader)) {
    throw ConfigError(
        fmt::format("--ema: {} has no averages of the weights: leave --ema out, or go on training with "
                    "optimizer.ema_decay = 0.999, say (--resume auto --set optimizer.ema_decay=0.999)",
                    checkpoint.string()));
  }
  return reader;
}

}  // namespace orthant
