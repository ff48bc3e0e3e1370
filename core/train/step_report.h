// StepReport: what one training step says of itself.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layers/layer.h"

namespace orthant {

// The same on every rank. Losses are means over the tokens that count, of the global batch; a routed layer's counters
// are sums over all ranks.
struct StepReport {
  std::int64_t step = 0;  // from 0
  double loss = 0;        // nats per token, without aux and z
  double aux_loss = 0;    // mean over routed layers of E sum f P (1 when balanced), before its coefficient
  double z_loss = 0;      // mean over routed layers, before its coefficient
  double grad_norm = 0;   // before clipping
  double lr = 0;
  std::int64_t tokens = 0;  // of this step that are not padding
  std::vector<LayerCounters> layers;
  double drop_rate() const;                  // choices that no expert computed / choices
  double expert_load_max_over_mean() const;  // the worst layer's
};

}  // namespace orthant
