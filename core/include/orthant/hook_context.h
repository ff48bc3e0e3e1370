// HookContext: the place in the step at which a hook of a keeper is called.
#pragma once

#include <cstdint>

#include <orthant/abi/plan.h>

namespace orthant {

class Stream;

// Which way a layer is being run.
enum class Pass { none, forward, backward };

// The place in the step at which a hook is called. Hooks around a group's early update have Pass::backward and no
// micro-batch.
struct HookContext {
  Stream& stream;          // the main one: what the hook enqueues here is ordered with the step
  std::int64_t step = 0;   // from 0: the step that is being taken; the same after a resume
  double lr = 0;           // of this step; 0 outside of one
  int micro_batch = -1;    // -1: none, as at the end of a step
  Pass pass = Pass::none;  // none: no layer is running
  bool training = true;    // false: validation; weights only
};

}  // namespace orthant
