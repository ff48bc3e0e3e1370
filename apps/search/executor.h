// What the pipeline's plugin does: its programs, and how it cuts layers.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/cost/step_time.h"
#include "core/command/arguments.h"
#include "core/session/session.h"

namespace orthant::search {

// Thread safety: one thread at a time.
class Executor {
 public:
  // alone: overrides under which every axis has one rank (problem_reader.h).
  Executor(ConfigArguments arguments, const std::vector<std::string>& alone, const Config& config);

  // Errors: those of the plugin.
  std::vector<int> blocks(int stages, int chunks);
  cost::PipelineProgram program(const cost::Layout& layout, int micro_batches);

 private:
  struct Planned {
    Config config;
    std::unique_ptr<Session> session;
  };
  const Schedule& schedule(const std::string& kind, int chunks);

  ConfigArguments arguments_;  // with the axes alone
  std::vector<double> cost_;   // of each link
  std::vector<int> block_;     // of each link; -1: none of the model's layers
  std::map<std::pair<std::string, int>, std::unique_ptr<Planned>> planned_;
  std::map<std::pair<int, int>, std::vector<int>> blocks_;
};

}  // namespace orthant::search
