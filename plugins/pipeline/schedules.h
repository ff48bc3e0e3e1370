// In which order a stage works through its micro-batches. Pure functions.
#pragma once

#include <vector>

#include <orthant/seams.h>

namespace orthant::pipeline {

// Each returns the forwards and backwards of one stage. Every chunk's backwards go through the micro-batches in
// ascending order, so that all schedules add gradients in the same order.

// All forwards, then all backwards (Huang et al., "GPipe", NeurIPS 2019).
std::vector<Instr> gpipe(int stage, int stages, int micro_batches);

// One forward, one backward, as soon as the first backward can begin (Narayanan et al., "PipeDream", SOSP 2019, with
// the flush of "Memory-efficient pipeline-parallel DNN training", ICML 2021).
std::vector<Instr> one_forward_one_backward(int stage, int stages, int micro_batches);

// The same over several chunks of each stage, in rounds of one micro-batch a stage (Narayanan et al., "Efficient
// large-scale language model training on GPU clusters using Megatron-LM", SC 2021).
// REQUIRES: micro_batches % stages == 0.
std::vector<Instr> interleaved(int stage, int stages, int chunks, int micro_batches);

// Adds load before a micro-batch's first use, the messages to and from other stages around each pass, and finish_grads
// and step at the end.
std::vector<Instr> with_messages(const std::vector<Instr>& passes, int stage, int stages, int chunks);

}  // namespace orthant::pipeline
