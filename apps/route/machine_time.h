// How long steps take on a machine of a file, by the rows that ranks get: the model of `orthant plan --search`
// (apps/cost), where step_time.h times on this machine.
//
// Thread safety: a const MachineTime is safe to share.
#pragma once

#include <string>
#include <vector>

#include "apps/cost/skew.h"
#include "apps/route/travel.h"
#include "core/config/config.h"

namespace orthant {

class MachineTime {
 public:
  // Errors: ConfigError for a file that is not there or not right.
  explicit MachineTime(const std::string& file);

  // Of the layout's ranks, which share the batch and the experts alone. layers: of one step. Its micro-batches are
  // drawn again and again: the slowest rank of each counts.
  cost::StepQuantiles of(const Config& config, const ExpertLayout& layout, const std::vector<Travel>& layers) const;

 private:
  cost::Practice practice_;
  cost::Machine machine_;
};

}  // namespace orthant
