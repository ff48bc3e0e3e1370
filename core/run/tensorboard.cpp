#include "core/run/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include <orthant/error.h>

#include "core/base/list_folder.h"
#include "core/base/output.h"

namespace orthant {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view event_prefix = "events.out.tfevents.";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string machine_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

// The time in an event file's name; 0 where it is none.
std::int64_t time_in(const std::string& name) {
  std::int64_t time = 0;
  if (name.starts_with(event_prefix)) {
    std::from_chars(name.data() + event_prefix.size(), name.data() + name.size(), time);
  }
  return time;
}

// TensorBoard reads files in the order of their names: the newest start comes last, also within a second.
std::string next_event_file(const std::filesystem::path& folder) {
  auto time = static_cast<std::int64_t>(wall_time());
  std::error_code no_listing;
  for (const std::filesystem::path& path : list_folder(folder, no_listing)) {
    time = std::max(time, time_in(path.filename().string()) + 1);
  }
  return fmt::format("{}{:010}.{}", event_prefix, time, machine_name());
}

const std::map<std::string, std::string, std::less<>>& tags() {
  static const std::map<std::string, std::string, std::less<>> known = {
      {"loss", "loss/train"},
      {"distil_loss", "loss/distil"},
      {"mtp_loss", "loss/mtp"},
      {"validation_loss", "loss/validation"},
      {"validation_mtp_loss", "loss/validation_mtp"},
      {"validation_bits_per_byte", "loss/validation_bits_per_byte"},
      {"grad_norm", "optimizer/grad_norm"},
      {"lr", "optimizer/learning_rate"},
      {"tokens", "progress/tokens"},
      {"batch_sequences", "progress/batch_sequences"},
      {"tokens_per_second", "speed/tokens_per_second"},
      {"step_seconds", "speed/step_seconds"},
      {"save_seconds", "speed/save_seconds"},
      {"mfu", "speed/mfu"},
      {"peak_bytes", "memory/peak_bytes"}};
  return known;
}

const std::map<std::string, std::string, std::less<>>& router_tags() {
  static const std::map<std::string, std::string, std::less<>> known = {
      {"aux_loss", "router/balance_loss"},
      {"z_loss", "router/z_loss"},
      {"drop_rate", "router/drop_rate"},
      {"expert_load_max_over_mean", "router/load_max_over_mean"},
      {"dropped_by_capacity", "router/dropped_by_capacity"},
      {"dropped_by_chance", "router/dropped_by_chance"}};
  return known;
}

// Of a key that no table here knows: a plugin's "NAME.KEY" is in its plugin's group.
std::string other_tag(const std::string& key) {
  if (key.find('/') != std::string::npos) {  // as TRL names it: "rewards/chosen"
    return key;
  }
  std::string tag = key;
  const std::size_t dot = tag.find('.');
  if (dot != std::string::npos && dot > 0) {
    tag[dot] = '/';
    return tag;
  }
  return "other/" + key;
}

void add(Scalars& to, const std::string& tag, const OrderedJson& value) {
  if (value.is_number() && std::isfinite(value.get<double>())) {
    to.emplace_back(tag, value.get<double>());
  } else if (value.is_object()) {
    for (const auto& [key, part] : value.items()) {
      add(to, tag + "/" + key, part);
    }
  }
}

}  // namespace

Scalars tensorboard_scalars(const std::string& line) {
  const OrderedJson json = OrderedJson::parse(line, nullptr, false);
  require(json.is_object(), "a line of metrics is no JSON object: {}", line);
  const bool routed = json.contains("expert_tokens");
  Scalars scalars;
  for (const auto& [key, value] : json.items()) {
    if (key == "step") {
      continue;
    }
    if (const auto known = tags().find(key); known != tags().end()) {
      add(scalars, known->second, value);
    } else if (const auto of_router = router_tags().find(key); of_router != router_tags().end()) {
      if (routed) {
        add(scalars, of_router->second, value);
      }
    } else if (key == "peak_by_kind") {
      add(scalars, "memory", value);
    } else if (key == "validation_losses") {
      add(scalars, "validation_loss", value);
    } else if (key == "validation_bits_per_byte_sets") {
      add(scalars, "validation_bits_per_byte", value);
    } else if (key == "routing") {
      add(scalars, "router", value);
    } else {
      add(scalars, other_tag(key), value);
    }
  }
  return scalars;
}

TensorboardFile::TensorboardFile(std::filesystem::path folder, std::int64_t resumed_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = folder / event_prefix;
  if (!error) {
    path_ = folder / next_event_file(folder);
  }
  out_.open(path_, std::ios::binary | std::ios::app);
  const double now = wall_time();
  append(as_record(version_event(now)) + as_record(restart_event(now, resumed_step + 1)));
}

void TensorboardFile::write(const std::string& line) {
  if (!failed_) {
    const std::int64_t step = OrderedJson::parse(line).value("step", std::int64_t{0});
    append(as_record(scalars_event(wall_time(), step, tensorboard_scalars(line))));
  }
}

void TensorboardFile::append(const std::string& events) {
  out_ << events;
  if (!out_.flush()) {
    failed_ = true;
    say("orthant: warning: cannot write {}, so TensorBoard sees no more of this run; metrics.jsonl has all of it",
        path_.string());
  }
}

}  // namespace orthant
