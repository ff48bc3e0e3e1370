// What a rank's memory holds at its peak: weights, gradients, optimizer states, activations, the head's logits.
//
// Activations are counted as Korthikanti et al. do (arXiv 2205.05198, section 4): what each operation of a block keeps
// for its backward pass. The peak is that of an allocator's live bytes, not what it has reserved.
//
// Thread safety: pure functions.
#pragma once

#include "apps/cost/model_shape.h"

namespace orthant::cost {

// Bytes of one rank, by kind.
struct StageMemory {
  double weights = 0, gradients = 0, states = 0;
  double activations = 0;  // of all micro-batches that are between forward and backward
  double logits = 0;       // of the micro-batch in the head; the last stage only
  double workspace = 0;    // of libraries, and buffers of exchanges
  double host = 0;         // in the host's memory, and no part of total()
  double total() const { return weights + gradients + states + activations + logits + workspace; }
};

// stage: 0 .. pipeline - 1. busiest: the choices of the rank in question over the mean (imbalance()). Errors: none for
// a layout that check_layout() accepts.
StageMemory stage_memory(const ModelShape& model, const Layout& layout, int stage, double busiest = 1);

// The largest of all stages.
StageMemory peak_memory(const ModelShape& model, const Layout& layout, double busiest = 1);

// The mean of all stages, bytes, without embedding, head and logits, where each stage keeps `kept` micro-batches (at
// least one): the largest stage has as much, whatever the schedule and the cut.
double mean_memory(const ModelShape& model, const Layout& layout, double kept, double busiest = 1);

}  // namespace orthant::cost
