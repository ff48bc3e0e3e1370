// Layered gradient accumulation (Lamy-Poirier, "Layered Gradient Accumulation and Modular Pipeline Parallelism", 2021):
// every micro-batch passes a layer before any passes the next one, so a layer's weights are gathered once each way and
// its gradients summed once a step. The activations of all micro-batches are kept meanwhile.
#pragma once

#include <orthant/seams.h>

#include <span>
#include <vector>

namespace orthant::data_plugin {

// One stage, each layer a piece.
class LayeredSchedule final : public Schedule {
 public:
  explicit LayeredSchedule(int layers) : layers_(layers) {}  // embedding and head among them
  std::vector<int> cut(std::span<const double> cost, int stages) const override;
  std::vector<Instr> steps(int stage, int stages, int micro_batches) const override;

 private:
  int layers_;
};

}  // namespace orthant::data_plugin
