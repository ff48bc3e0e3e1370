// Small and published models, and a machine with round numbers.
#pragma once

#include "apps/cost/machine.h"
#include "apps/cost/model_shape.h"

namespace orthant::cost_test {

// GPT-3 175B (Brown et al., 2020), as Narayanan et al. and Korthikanti et al. train it.
inline cost::ModelShape gpt_175b() {
  cost::ModelShape model;
  model.layers = 96;
  model.hidden = 12288;
  model.ffn = 4 * model.hidden;
  model.heads = model.kv_heads = 96;
  model.head_size = 128;
  model.sequence = 2048;
  model.vocabulary = 51200;
  model.learned_positions = true;
  return model;
}

// Eight ranks a node; every link takes a microsecond; inside 100 GB/s, between nodes 10 GB/s.
inline cost::Machine round_machine() {
  cost::Machine machine;
  machine.name = machine.generation = "round";
  machine.peak = {1e13, 1e14, 2e14, 0};
  machine.memory = 80e9;
  machine.memory_bandwidth = 1e12;
  machine.links = {{"inside", 8, 100e9, 1e-6, false}, {"between", 0, 10e9, 1e-6, false}};
  machine.factors = {1, 1, 1, 1, 1e-9};
  return machine;
}

inline cost::Layout layout_of(int ranks, int tensor, int pipeline, double global_batch, double micro_batch) {
  cost::Layout layout;
  layout.ranks = ranks;
  layout.tensor = tensor;
  layout.pipeline = pipeline;
  layout.global_batch = global_batch;
  layout.micro_batch = micro_batch;
  return layout;
}

}  // namespace orthant::cost_test
