#include "core/program/route_questions.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <filesystem>

namespace orthant {

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
