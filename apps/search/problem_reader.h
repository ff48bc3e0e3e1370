// A configuration as a search's problem: sizes of the model, and what the program asks of a layout of it.
//
// Programs of pipelines and cuts of layers come from the plugins themselves, and so do the features that this model
// does not take: each is tried once, in the smallest layout that has it.
#pragma once

#include <memory>
#include <string>

#include "apps/search/problem.h"
#include "core/command/arguments.h"

namespace orthant::search {

struct Wanted {
  ConfigArguments configuration;
  std::string machine;  // its file; factors.toml lies beside it
  int ranks = 0;        // 0: those of the configuration's layout
  double memory = 0;    // bytes of a rank; 0: memory.limit, else what a machine's libraries leave
  std::string routing;  // the folder of a run whose routing is taken; empty: balanced
};

// Sizes of a model as the configuration has them. Whoever wants to know a step's time asks with them.
cost::ModelShape shape_of(const Settings& settings);
// Types of numbers, bytes of states and the batch. Axes are all 1.
cost::Layout base_layout(const Settings& settings);

// A machine's file, and the factors that all machines share: of factors.toml beside it, where there is one.
// Errors: ConfigError, as cost::load_machine.
cost::Machine read_machine(const std::string& file, cost::Practice& practice);

// Overrides under which every axis of the configuration has one rank.
std::vector<std::string> alone(const Config& config);

// Errors: ConfigError for files that are not there or not right.
Problem read_problem(const Wanted& wanted, const Config& config);

}  // namespace orthant::search
