// Teacher: a model that is only read, beside the one that trains, in the same layout: what divides the one divides the
// other. Its forward pass goes through all layers but the head; the student's head then asks for its logits, chunk by
// chunk, so that they exist for one chunk of tokens at a time.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <orthant/objective.h>

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "core/config/config.h"
#include "core/data/batch.h"
#include "core/model/model.h"
#include "core/session/session.h"
#include "core/train/executor.h"

namespace orthant {

class Teacher final : public TeacherLogits {
 public:
  // Collective over the world. The weights are zero until somebody loads them. All references outlive the teacher.
  // Errors: those of teacher_config and of Session::plan.
  Teacher(const Config& student, int rank, Communicator& communicator, Device& device, Stream& stream);

  // The micro-batches of a step, which stay until the step has ended. Stages pass all of them on now; where there is
  // one stage, each is read when it is asked for.
  void begin_step(std::span<const HostBatch> micro_batches, std::int64_t step);
  // Before the student's first layer sees it.
  void read(int micro_batch);

  void begin(int micro_batch) override;
  Tensor logits(std::int64_t begin, std::int64_t rows) override;
  void end() override;

  Plan& plan() { return session_.plan(); }
  ParamStore& parameters() { return model_->parameters(); }

 private:
  class Reading;
  StepContext context(const DeviceBatch& batch, int micro_batch);
  DeviceBatch loaded(int micro_batch);
  void keep(int micro_batch, const Tensor& x);

  Config config_;
  Session session_;
  Stream& stream_;
  std::optional<Model> model_;
  std::optional<Executor> executor_;
  std::span<const HostBatch> micro_batches_;
  std::uint32_t step_ = 0;
  StepSums nothing_counted_;
  DeviceBatch no_batch_;
  std::map<int, Tensor> x_;  // [T, d] of each micro-batch, behind the last block, on the stage that has the head
  int at_ = -1;              // the micro-batch between begin and end,
  Tensor normed_;            // and its input to the head's matrix
};

// Null where the configuration has none.
std::unique_ptr<Teacher> make_teacher(const Config& student, int rank, Communicator& communicator, Device& device,
                                      Stream& stream);

}  // namespace orthant
