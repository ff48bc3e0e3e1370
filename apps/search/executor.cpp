#include "apps/search/executor.h"

#include <fmt/format.h>

#include "apps/search/axis_names.h"
#include "core/arch/links.h"
#include "core/plan/schedule_check.h"

namespace orthant::search {

Executor::Executor(ConfigArguments arguments, const std::vector<std::string>& alone, const Config& config)
    : arguments_(std::move(arguments)) {
  arguments_.overrides.insert(arguments_.overrides.end(), alone.begin(), alone.end());
  for (const Link& link : links_of(config.settings)) {
    cost_.push_back(cost_of(link));
    block_.push_back(link.block < config.settings.model.layers ? link.block : -1);
  }
}

const Schedule& Executor::schedule(const std::string& kind, int chunks) {
  std::unique_ptr<Planned>& planned = planned_[{kind, chunks}];
  if (planned == nullptr) {
    ConfigArguments with = arguments_;
    for (const std::string& set :
         {std::string("size=1"), fmt::format("schedule=\"{}\"", kind), fmt::format("chunks={}", chunks)}) {
      with.overrides.push_back(fmt::format("plugins.{}.{}", named::pipeline, set));
    }
    auto made = std::make_unique<Planned>(Planned{load_config(with), nullptr});
    made->session = std::make_unique<Session>(made->config);
    made->session->plan(0, nullptr, nullptr);
    planned = std::move(made);
  }
  return planned->session->plan().schedule();
}

std::vector<int> Executor::blocks(int stages, int chunks) {
  std::vector<int>& blocks = blocks_[{stages, chunks}];
  if (blocks.empty()) {
    const std::vector<int> first = schedule(chunks > 1 ? "interleaved" : "1f1b", chunks).cut(cost_, stages);
    for (std::size_t piece = 0; piece + 1 < first.size(); ++piece) {
      int count = 0;
      for (int link = first[piece]; link < first[piece + 1]; ++link) {
        count += block_[static_cast<std::size_t>(link)] >= 0 ? 1 : 0;
      }
      blocks.push_back(count);
    }
  }
  return blocks;
}

cost::PipelineProgram Executor::program(const cost::Layout& layout, int micro_batches) {
  if (layout.pipeline == 1) {
    return cost::published_programs(layout, micro_batches);  // one stage: forward and backward in turn
  }
  const std::string kind = layout.chunks > 1 ? "interleaved" : layout.all_at_once ? "gpipe" : "1f1b";
  return cost::program_of(programs_of(schedule(kind, layout.chunks), layout.pipeline, layout.chunks, micro_batches));
}

}  // namespace orthant::search
