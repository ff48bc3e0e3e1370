// What `orthant route` is asked: its options, and the rows of its table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

struct RouteOptions {
  std::string run;      // a run's folder
  std::string machine;  // its file; empty: time is that of this machine
  std::vector<std::string> overrides, capacity_factors, routers, policies;
  std::vector<int> ranks, levels;
  std::vector<std::string> placements;
  std::int64_t experts_per_rank = 0, step = 0;
  int node_ranks = 0;
  std::optional<double> rate_inside, rate_between;  // bytes a second; none: as this machine copies
  bool json = false, time = true;
};

// What is changed in one row of the table.
struct Question {
  std::string capacity_factor, router, policy, placement;
  int ranks = 0, level = 0;  // 0: as the run
  bool own = false;          // the run as it was, whatever --set says
};

Question as_it_was();

// Refuses what a recording cannot answer: another model, other data, another batch, noise, rates that are none.
// Errors: ConfigError naming the key or the option.
void check_options(const RouteOptions& options);

// All combinations of what the options ask for, behind the run as it was; without any, that alone. Where a list is
// empty, the run's own. Errors: ConfigError for experts_per_rank that does not divide `experts`.
std::vector<Question> questions_of(const RouteOptions& options, std::int64_t experts);

// A row's name: "switch, capacity 1.25, 4 ranks".
std::string text_of(const Question& q, const RouteOptions& options);

}  // namespace orthant
