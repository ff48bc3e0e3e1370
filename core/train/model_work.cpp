#include "core/train/model_work.h"

#include "core/plan/schedule_check.h"
#include "core/train/gradient_rule.h"

namespace orthant {

std::vector<Instr> forward_passes(const Plan& plan, int micro_batches) {
  const int pieces = static_cast<int>(plan.cut().size()) - 1;
  return forward_program(plan.stage(), plan.stages(), pieces / plan.stages(), micro_batches);
}

Bundle ModelWork::forward(int chunk, int micro_batch, Bundle x) {
  const auto [first, last] = plan_.layers_of_chunk(chunk);
  return model_.forward(context_of(chunk, micro_batch), std::move(x), first, last);
}

Bundle ModelWork::backward(int chunk, int micro_batch, Bundle dy, bool last_of_chunk) {
  const auto [first, last] = plan_.layers_of_chunk(chunk);
  return model_.backward(context_of(chunk, micro_batch), std::move(dy), first, last, last_of_chunk, listener_);
}

void ModelWork::finish_grads() {
  finish_gradients(model_.parameters(), plan_, finish_);
}

}  // namespace orthant
