#include "core/train/teacher.h"

#include <algorithm>

#include "core/session/teacher_config.h"
#include "core/trace/tracing_stream.h"
#include "core/train/micro_batches.h"
#include "core/train/model_work.h"

namespace orthant {

// The forward passes of one stage.
class Teacher::Reading final : public StageWork {
 public:
  explicit Reading(Teacher& teacher) : teacher_(teacher) {}
  void load(int micro_batch) override { loaded_[micro_batch] = teacher_.loaded(micro_batch); }
  void unload(int micro_batch) override { loaded_.erase(micro_batch); }
  Bundle forward(int chunk, int micro_batch, Bundle x) override {
    Model& model = *teacher_.model_;
    const auto [first, last] = teacher_.plan().layers_of_chunk(chunk);
    const int head = model.head();
    x = model.forward(teacher_.context(loaded_.at(micro_batch), micro_batch), std::move(x), first,
                      std::min(last, head));
    if (last <= head) {
      return x;
    }
    teacher_.keep(micro_batch, x.front());
    return {};
  }
  Bundle backward(int, int, Bundle, bool) override { fail("a teacher has no backward pass"); }
  void finish_grads() override {}

 private:
  Teacher& teacher_;
  std::map<int, DeviceBatch> loaded_;
};

Teacher::Teacher(const Config& student, int rank, Communicator& communicator, Device& device, Stream& stream)
    : config_(teacher_config(student)), session_(config_), stream_(stream) {
  session_.plan(rank, &communicator, &device);
  model_.emplace(plan(), stream, false);
  executor_.emplace(plan(), stream, largest_share(plan()).micro_batch);
}

StepContext Teacher::context(const DeviceBatch& batch, int micro_batch) {
  return {.plan = plan(),
          .stream = stream_,
          .batch = batch,
          .sums = nothing_counted_,
          .step = step_,
          .micro_batch = micro_batch,
          .training = false};
}

DeviceBatch Teacher::loaded(int micro_batch) {
  return upload(micro_batches_[static_cast<std::size_t>(micro_batch)], plan(), stream_);
}

void Teacher::keep(int micro_batch, const Tensor& x) {
  x.storage()->set_kind(MemoryKind::activations);
  x_[micro_batch] = x;
}

void Teacher::begin_step(std::span<const HostBatch> micro_batches, std::int64_t step) {
  micro_batches_ = micro_batches;
  step_ = static_cast<std::uint32_t>(step);
  x_.clear();
  if (plan().stages() > 1) {
    const Phase phase(stream_, "teacher");
    Reading work(*this);
    executor_->run(forward_passes(plan(), static_cast<int>(micro_batches.size())), work);
  }
}

void Teacher::read(int micro_batch) {
  if (plan().stages() == 1) {
    const Phase phase(stream_, "teacher");
    const DeviceBatch batch = loaded(micro_batch);
    keep(micro_batch, model_->forward(context(batch, micro_batch), {}, 0, model_->head()).front());
  }
}

void Teacher::begin(int micro_batch) {
  const auto found = x_.find(micro_batch);
  require(found != x_.end(), "the teacher has not read micro-batch {}", micro_batch);
  at_ = micro_batch;
  const StepContext ctx = context(no_batch_, micro_batch);
  model_->hold_head(ctx);
  normed_ = model_->head_input(ctx, found->second);
}

Tensor Teacher::logits(std::int64_t begin, std::int64_t rows) {
  return model_->head_logits(context(no_batch_, at_), normed_, begin, rows);
}

void Teacher::end() {
  model_->release_head(context(no_batch_, at_));
  normed_ = {};
  x_.erase(at_);
  at_ = -1;
}

std::unique_ptr<Teacher> make_teacher(const Config& student, int rank, Communicator& communicator, Device& device,
                                      Stream& stream) {
  return has_teacher(student) ? std::make_unique<Teacher>(student, rank, communicator, device, stream) : nullptr;
}

}  // namespace orthant
