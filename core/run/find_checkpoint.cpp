#include "core/run/find_checkpoint.h"

#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/output.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/model_folder.h"
#include "core/run/resumable.h"
#include "core/run/resumed.h"
#include "core/run/run_tokenizer.h"
#include "core/run/saving.h"
#include "core/run/starting_weights.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* how_to_begin_anew =
    "to begin anew, leave --resume out: what is there is then kept under another name";

// Of a rank's share of a checkpoint, as a text that travels: empty, or one of these letters and the reason.
constexpr char damaged = 'd', unreadable = 'u';

std::string verdict(const std::string& path, std::int64_t part, std::int64_t parts) {
  try {
    const std::string reason = why_not_usable(*named_checkpoint(path), part, parts);
    return reason.empty() ? "" : damaged + reason;
  } catch (const CheckpointUnreadable& failed) {
    return unreadable + std::string(failed.what());
  }
}

// The ranks' verdicts as one: what cannot be read now decides over what is damaged.
std::string joined(const std::vector<std::string>& verdicts) {
  std::string worst;
  for (const std::string& one : verdicts) {
    worst = one.substr(0, 1) > worst.substr(0, 1) ? one : worst;
  }
  return worst;
}

// Rank 0's side of the search: names the checkpoints to verify and judges the verdicts.
class Search {
 public:
  explicit Search(const std::filesystem::path& root) : root_(root) {
    try {
      for (const std::string& misnamed : misnamed_in(root)) {
        pass_over(misnamed);
      }
      for (NamedCheckpoint& checkpoint : checkpoints_in(root)) {
        if (checkpoint.finished()) {
          left_.push_back(std::move(checkpoint));
        }
      }
    } catch (const CheckpointUnreadable& failed) {
      refuse_unreadable(failed.what());
    }
    std::reverse(left_.begin(), left_.end());
  }

  // The next one to verify; empty: there is none. Errors: ConfigError where none that is there can be used.
  std::string next() {
    if (left_.empty() && !passed_over_.empty()) {
      throw ConfigError(fmt::format("--resume auto: no checkpoint under {} can be used:\n  {}\n{}", root_.string(),
                                    fmt::join(passed_over_, "\n  "), how_to_begin_anew));
    }
    return left_.empty() ? "" : left_.back().path.string();
  }

  void judge(const std::string& verdict) {
    const NamedCheckpoint judged = std::move(left_.back());
    left_.pop_back();
    if (verdict.starts_with(unreadable)) {
      refuse_unreadable(verdict.substr(1));
    } else if (verdict.starts_with(damaged)) {
      pass_over(judged.path.string() + ": " + verdict.substr(1));
    }
  }

 private:
  void pass_over(const std::string& reason) {
    passed_over_.push_back(reason);
    say("orthant: warning: checkpoint passed over: {}", reason);
  }

  [[noreturn]] void refuse_unreadable(const std::string& reason) const {
    fail(
        "--resume auto: {}. What cannot be read now may be whole, so nothing is started over. Make it readable; or go "
        "on from another checkpoint, --resume {}; {}",
        reason, left_.empty() ? "PATH" : left_.back().path.string(), how_to_begin_anew);
  }

  std::filesystem::path root_;
  std::vector<NamedCheckpoint> left_;  // the newest last
  std::vector<std::string> passed_over_;
};

// For a folder that holds checkpoints and is none. Empty: this is another one.
std::string run_folder_advice(const fs::path& given, const fs::path& root) {
  const fs::path path = (given / "").lexically_normal().parent_path();
  std::error_code error;
  if (is_checkpoint(path)) {
    return "";
  }
  for (const fs::path& folder : {path / "checkpoints", path}) {
    const Resumable found = find_resumable(folder, 0);
    if (found.checkpoint) {
      return fmt::format("that is a {} folder; its newest checkpoint is {}: give that{}",
                         folder == path ? "checkpoints" : "run", found.checkpoint->string(),
                         fs::equivalent(folder, root, error) ? ", or use --resume auto" : "");
    }
  }
  return "";
}

}  // namespace

ResumeFrom resume_from(const std::string& resume) {
  constexpr std::string_view prefix = "auto:";
  if (resume == "auto") {
    return {true, ""};
  }
  return resume.starts_with(prefix) ? ResumeFrom{true, resume.substr(prefix.size())} : ResumeFrom{false, resume};
}

namespace {

// The newest checkpoint under `root` whose manifest is whole: ranks may find it damaged in its files, and take an older
// one. Empty: there is none. Nothing: what is there cannot be told now, and the run will say why.
std::optional<fs::path> likely_newest(const fs::path& root) {
  try {
    for (const NamedCheckpoint& checkpoint : checkpoints_in(root)) {
      try {
        if (checkpoint.finished() && CheckpointReader(checkpoint.path).step() == checkpoint.step) {
          return checkpoint.path;
        }
      } catch (const CheckpointUnreadable&) {
        throw;
      } catch (const Error&) {  // damaged: ranks pass it over as well
      }
    }
    return fs::path();
  } catch (const CheckpointUnreadable&) {
    return std::nullopt;
  }
}

}  // namespace

void check_resume(const std::string& resume, const std::filesystem::path& root, const Config& config) {
  const auto [newest, given] = resume_from(resume);
  const std::optional<fs::path> found = newest ? likely_newest(root) : fs::path();
  const std::string path = found.has_value() && found->empty() ? given : found.value_or("").string();
  if (path.empty()) {
    return;
  }
  const std::string asked = path == given ? "--resume " + path : "--resume auto: " + path,
                    anew = path == given
                               ? ""
                               : fmt::format("\ngo on with the settings that wrote it; {}", how_to_begin_anew);
  std::optional<CheckpointReader> reader;
  try {
    reader.emplace(path);
  } catch (const Error& error) {
    const std::string advice = run_folder_advice(path, root);
    if (!advice.empty()) {
      throw ConfigError(fmt::format("{}: {}", asked, advice));
    }
    throw ConfigError(fmt::format("{}: it is no checkpoint that can be read: {}", asked, error.what()));
  }
  const std::vector<std::string> names = reader->names();
  if (std::any_of(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("worker"); })) {
    return;  // of independent workers: the ranks find out whose are whose
  }
  try {
    require_same_kind(*reader, config.settings);
    check_resumed_weights(path, config.settings);
    require_same_parameters(*reader, config.settings);
    require_same_tokenizer(config.settings, run_of(path));
  } catch (const Error& error) {
    warn_of_changed_settings(*reader, config);  // they say why
    const std::string reason = error.what();
    throw ConfigError(
        fmt::format("{}{}{}", asked, reason.starts_with(path) ? reason.substr(path.size()) : ": " + reason, anew));
  }
}

bool starts_fresh(const std::string& resume, const std::filesystem::path& root) {
  const auto [newest, path] = resume_from(resume);
  if (!newest || !path.empty()) {
    return path.empty();
  }
  try {
    const std::vector<NamedCheckpoint> there = checkpoints_in(root);
    return std::none_of(there.begin(), there.end(), [](const NamedCheckpoint& one) { return one.finished(); });
  } catch (const CheckpointUnreadable&) {
    return false;
  }
}

std::filesystem::path find_checkpoint(const std::string& resume, const std::filesystem::path& root, Group& world,
                                      Stream& stream) {
  const bool first = world.rank() == 0;
  const auto [newest, path] = resume_from(resume);
  const auto told = [&](const std::string& text) { return gather_texts(first ? text : "", world, stream).front(); };
  if (told(newest ? "search" : "").empty()) {
    return told(path);
  }
  std::optional<Search> search;
  if (first) {
    search.emplace(root);
  }
  for (;;) {
    const std::string next = told(first ? search->next() : "");
    if (next.empty()) {
      return told(path);
    }
    const std::string all = joined(gather_texts(verdict(next, world.rank(), world.size()), world, stream));
    if (first) {
      search->judge(all);
    }
    if (all.empty()) {
      return next;
    }
  }
}

}  // namespace orthant
