#include "core/run/resumed.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "core/base/output.h"
#include "core/run/remembered_settings.h"
#include "core/train/optimizer_step.h"

namespace orthant {

std::int64_t number_in(const CheckpointReader& reader, const std::string& key) {
  const auto found = reader.state().find(key);
  std::int64_t value = -1;
  if (found != reader.state().end()) {
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  }
  require(value >= 0, "the checkpoint of step {} does not say its '{}'", reader.step(), key);
  return value;
}

void say_resumed(const std::filesystem::path& from, const CheckpointReader& reader) {
  put("resumed from {} after step {}\n", from.string(), number_in(reader, "step"));
  const auto named = named_checkpoint((from / "").lexically_normal().parent_path());
  if (named && named->step != reader.step()) {
    say("orthant: warning: {} was renamed: its manifest is of step {}", from.string(), reader.step());
  }
}

namespace {

// Another run.steps, where the learning rate of the next step would be another one with the steps of before.
std::string changed_length(const std::string& remembered, const Settings& now, std::int64_t done) {
  const std::optional<std::int64_t> steps = remembered_steps(remembered);
  if (!steps.has_value() || *steps == now.run.steps) {
    return "";
  }
  Settings before = now;
  before.run.steps = *steps;
  const std::string was = fmt::format("{:.3g}", learning_rate(before, done));
  const std::string is = fmt::format("{:.3g}", learning_rate(now, done));
  return was == is ? ""
                   : fmt::format(
                         "run.steps = {} (was {}), which moves the learning rate of step {} from {} to {}"
                         " (optimizer.schedule = \"{}\"; write optimizer.decay_steps where it should not)",
                         now.run.steps, *steps, done + 1, was, is, now.optimizer.schedule);
}

}  // namespace

void require_same_kind(const CheckpointReader& reader, const Settings& settings) {
  const auto remembered = reader.state().find("settings");
  const std::string here = settings.model.kind;
  const std::string there = remembered == reader.state().end() ? here : remembered_kind(remembered->second);
  require(here == there, "the checkpoint of step {} is of a model of kind \"{}\", and [model] kind is \"{}\"",
          reader.step(), there, here);
}

void warn_of_changed_settings(const CheckpointReader& reader, const Config& config) {
  const auto remembered = reader.state().find("settings");
  if (remembered != reader.state().end()) {
    std::vector<std::string> changed = changed_settings(config, remembered->second);
    if (std::string line = changed_length(remembered->second, config.settings, number_in(reader, "step"));
        !line.empty()) {
      changed.push_back(std::move(line));
    }
    if (!changed.empty()) {
      say("orthant: warning: settings other than the checkpoint's: {}", fmt::join(changed, "; "));
    }
  }
}

std::vector<std::string> other_router_training(const CheckpointReader& reader, const Config& config) {
  constexpr std::array<std::string_view, 5> keys = {"moe.aux_loss", "moe.balance_over", "moe.bias_update_rate",
                                                    "moe.jitter", "moe.z_loss"};
  std::vector<std::string> lines;
  const auto remembered = reader.state().find("settings");
  if (remembered == reader.state().end() || config.settings.moe.experts == 0) {
    return lines;
  }
  for (const std::string& changed : changed_settings(config, remembered->second)) {
    const std::string_view key = std::string_view(changed).substr(0, changed.find(" ="));
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
      lines.push_back(fmt::format("the routers are trained otherwise than where the weights come from: {}", changed));
    }
  }
  return lines;
}

void sync_run_folder(std::filesystem::path folder) {
  for (int i = 0; i < 3; ++i) {
    Disk().sync_folder(folder.empty() ? "." : folder);
    folder = folder.parent_path();
  }
}

}  // namespace orthant
