#include "apps/route/route_questions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "apps/pretrained/setting_key.h"

namespace orthant {
namespace {

// Keys that a replay or its time follow. All others are the recording's own.
constexpr std::array replayed_keys = {
    "moe.top_k",         "moe.router",           "moe.score",       "moe.capacity_factor",   "moe.group_tokens",
    "moe.drop_policy",   "moe.weight_scale",     "moe.group_score", "moe.normalize_weights", "moe.expert_groups",
    "batch.micro_batch", "moe.groups_per_token", "run.threads",
};

bool is_replayed(const std::string& key) {
  return key.starts_with("plugins.") || key.starts_with("memory.") ||
         std::find(replayed_keys.begin(), replayed_keys.end(), key) != replayed_keys.end();
}

void check_rate(const std::optional<double>& rate, const char* option) {
  if (rate && !(std::isfinite(*rate) && *rate >= 1)) {
    throw ConfigError(fmt::format(
        "{} {}: expected a finite number of bytes a second, at least 1; leave it out for what this machine copies",
        option, *rate));
  }
}

}  // namespace

void check_options(const RouteOptions& options) {
  for (const std::string& setting : options.overrides) {
    const std::string key = setting_key(setting);
    if (key == "moe.jitter") {
      throw ConfigError(fmt::format(
          "--set {}: noise is not replayed: the recorded logits are those of the run's own moe.jitter", setting));
    }
    if (!is_replayed(key)) {
      throw ConfigError(fmt::format(
          "--set {}: {} stays the recording's: a replay changes how [moe] chooses experts ({}), and [plugins.*] and "
          "[memory]. Train and record a run with it instead",
          setting, key, fmt::join(replayed_keys, ", ")));
    }
  }
  check_rate(options.rate_inside, "--rate-inside");
  check_rate(options.rate_between, "--rate-between");
}

Question as_it_was() {
  Question q;
  q.own = true;
  return q;
}

std::vector<Question> questions_of(const RouteOptions& options, std::int64_t experts) {
  std::vector<int> ranks = options.ranks;
  if (options.experts_per_rank > 0) {
    if (experts % options.experts_per_rank != 0) {
      throw ConfigError(
          fmt::format("--experts-per-rank {}: it does not divide {} experts", options.experts_per_rank, experts));
    }
    ranks.push_back(static_cast<int>(experts / options.experts_per_rank));
  }
  std::vector<Question> all = {{}};
  const auto cross = [&](const auto& values, auto member) {
    std::vector<Question> more;
    for (const Question& q : all) {
      for (const auto& value : values) {
        more.push_back(q);
        more.back().*member = value;
      }
    }
    all = values.empty() ? all : more;
  };
  cross(options.routers, &Question::router);
  cross(options.capacity_factors, &Question::capacity_factor);
  cross(options.policies, &Question::policy);
  cross(ranks, &Question::ranks);
  cross(options.placements, &Question::placement);
  cross(options.levels, &Question::level);
  const bool asks =
      !(options.routers.empty() && options.capacity_factors.empty() && options.policies.empty() && ranks.empty() &&
        options.placements.empty() && options.levels.empty() && options.overrides.empty());
  if (asks) {
    all.insert(all.begin(), as_it_was());
  }
  return all;
}

std::string text_of(const Question& q, const RouteOptions& options) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (!q.router.empty()) {
    add(q.router);
  }
  if (!q.capacity_factor.empty()) {
    add("capacity " + q.capacity_factor);
  }
  if (!q.policy.empty()) {
    add("by " + q.policy);
  }
  if (q.ranks > 0) {
    add(fmt::format("{} rank{}", q.ranks, q.ranks == 1 ? "" : "s"));
  }
  if (!q.placement.empty()) {
    add(std::filesystem::path(q.placement).filename().string());
  }
  if (q.level > 0) {
    add(fmt::format("{} level{}", q.level, q.level == 1 ? "" : "s"));
  }
  for (std::size_t i = 0; !q.own && i < options.overrides.size(); ++i) {
    add(options.overrides[i]);
  }
  return text.empty() ? "as it was" : text;
}

}  // namespace orthant
