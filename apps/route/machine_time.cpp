#include "apps/route/machine_time.h"

#include <orthant/settings.h>

#include <algorithm>
#include <numeric>

#include "apps/search/problem_reader.h"

namespace orthant {
namespace {

// [micro-batch][layer]: the busiest rank's rows over the mean.
cost::Routing routing_by_rows(const std::vector<Travel>& layers) {
  cost::Routing routing;
  routing.busiest.resize(layers.at(0).rows.size());
  for (const Travel& layer : layers) {
    for (std::size_t batch = 0; batch < layer.rows.size(); ++batch) {
      double most = 0, sum = 0;
      for (const std::vector<std::int64_t>& rows : layer.rows[batch]) {
        const double own = std::accumulate(rows.begin(), rows.end(), 0.0);
        most = std::max(most, own);
        sum += own;
      }
      const auto ranks = static_cast<double>(layer.rows[batch].size());
      routing.busiest[batch].push_back(sum > 0 ? most * ranks / sum : 1);
    }
  }
  return routing;
}

}  // namespace

MachineTime::MachineTime(const std::string& file) : machine_(search::read_machine(file, practice_)) {}

cost::StepQuantiles MachineTime::of(const Config& config, const ExpertLayout& layout,
                                    const std::vector<Travel>& layers) const {
  const Settings& settings = config.settings;
  const std::size_t micro_batches = layout.recomputed.size();
  cost::Layout ranks = search::base_layout(settings);
  ranks.ranks = layout.ranks;
  ranks.expert = layout.expert_ranks;
  ranks.tensor_experts = cost::TensorExperts::split;
  ranks.micro_batch = static_cast<double>(layers.at(0).tokens) / static_cast<double>(settings.data.sequence_length);
  ranks.global_batch = ranks.micro_batch * static_cast<double>(micro_batches) * layout.ranks;
  ranks.exchange = layout.two_levels ? cost::Exchange::two_levels : cost::Exchange::one_level;
  const bool again = std::count(layout.recomputed.begin(), layout.recomputed.end(), true) * 2 >
                     static_cast<std::ptrdiff_t>(micro_batches);
  ranks.recompute = again ? cost::Recompute::full : cost::Recompute::none;
  const cost::ModelShape model = search::shape_of(settings);
  return cost::step_quantiles(model, ranks, machine_, practice_, routing_by_rows(layers), cost::StepClock(ranks, true));
}

}  // namespace orthant
