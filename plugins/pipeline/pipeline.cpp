// The pipeline axis: each stage holds some of the layers, and micro-batches travel from stage to stage.
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include "cut.h"
#include "schedules.h"

namespace {

using namespace orthant;

class PipelineSchedule final : public Schedule {
 public:
  PipelineSchedule(std::string kind, int chunks) : kind_(std::move(kind)), chunks_(chunks) {}

  std::vector<int> cut(std::span<const double> cost, int stages) const override {
    const int pieces = stages * chunks_;
    if (cost.size() < static_cast<std::size_t>(pieces)) {
      const std::string of = chunks_ == 1 ? "" : fmt::format(" of {} chunks", chunks_);
      throw LayoutError(fmt::format("{} stages{} need {} pieces of at least one layer, but the model has {} layers "
                                    "({} blocks, the embedding and the head)",
                                    stages, of, pieces, cost.size(), cost.size() - 2),
                        "pipeline", Dim::layer);
    }
    return pipeline::cut_evenly(cost, pieces);
  }

  std::vector<Instr> steps(int stage, int stages, int micro_batches) const override {
    return pipeline::with_messages(passes(stage, stages, micro_batches), stage, stages, chunks_);
  }

 private:
  std::vector<Instr> passes(int stage, int stages, int micro_batches) const {
    if (kind_ == "gpipe") {
      return pipeline::gpipe(stage, stages, micro_batches);
    }
    if (kind_ == "1f1b") {
      return pipeline::one_forward_one_backward(stage, stages, micro_batches);
    }
    require(micro_batches % stages == 0, "{} micro-batches do not divide into rounds of {} stages", micro_batches,
            stages);
    return pipeline::interleaved(stage, stages, chunks_, micro_batches);
  }

  std::string kind_;
  int chunks_;
};

// Of each rank that splits the batch, for each size of it; 0 where they do not divide, which the core refuses.
std::vector<std::int64_t> micro_batches_of(const Plan& plan) {
  std::int64_t ranks = 1;
  for (AxisId axis : plan.axes_of(Dim::batch, Region::embedding)) {
    ranks *= plan.mesh().axes()[axis].size;
  }
  const BatchSettings& batch = plan.settings().batch;
  const std::int64_t micro = micro_batch_of(plan.settings(), batch.sequences / ranks);
  std::vector<std::int64_t> found;
  for (const std::int64_t sequences : batch_sizes(batch)) {
    found.push_back(micro == 0 || sequences % (ranks * micro) != 0 ? 0 : sequences / ranks / micro);
  }
  return found;
}

class Pipeline final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size",
             .default_value = std::int64_t{1},
             .help = "Stages: ranks that divide the layers.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "schedule",
             .default_value = std::string("1f1b"),
             .help = "Order of work: all forwards first, one forward and one backward in turn, or that over several "
                     "chunks of each stage.",
             .choices = {"gpipe", "1f1b", "interleaved"}},
            {.name = "chunks",
             .default_value = std::int64_t{1},
             .help = "Runs of layers that each stage holds; \"interleaved\" needs at least 2, the others 1.",
             .minimum = 1,
             .maximum = 65536}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    size_ = static_cast<int>(config.integer("size"));
    chunks_ = static_cast<int>(config.integer("chunks"));
    kind_ = config.text("schedule");
    if ((kind_ == "interleaved") != (chunks_ > 1)) {
      throw SettingError(chunks_ > 1 ? "plugins.pipeline.chunks" : "plugins.pipeline.schedule",
                         fmt::format("schedule = \"{}\" with chunks = {}: \"interleaved\" needs at least 2 chunks, the "
                                     "other schedules have 1",
                                     kind_, chunks_));
    }
    if (static_cast<std::int64_t>(size_) * chunks_ > 65536) {
      throw SettingError("plugins.pipeline.chunks",
                         fmt::format("size = {} and chunks = {} are {} pieces: at most 65536 are possible", size_,
                                     chunks_, static_cast<std::int64_t>(size_) * chunks_));
    }
    mesh.claim({.name = "pipeline", .size = size_, .splits = {Dim::layer}});
  }

  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  void plan(Plan& plan, Mesh&) override {
    const BatchSettings& batch = plan.settings().batch;
    const std::vector<std::int64_t> micro_batches = micro_batches_of(plan);
    for (std::size_t i = 0; chunks_ > 1 && i < micro_batches.size(); ++i) {
      if (micro_batches[i] % size_ == 0) {
        continue;
      }
      const std::string refused = fmt::format(
          "schedule = \"interleaved\" works in rounds of one micro-batch a stage: the {} micro-batches of a "
          "step do not divide by size = {}. Change batch.micro_batch (now {}) or ",
          micro_batches[i], size_, batch.micro_batch.written());
      if (i == 0) {
        throw SettingError("batch.micro_batch", refused + fmt::format("batch.sequences ({})", batch.sequences));
      }
      throw SettingError("batch.grow_to", refused + fmt::format("batch.grow_to ({})", batch.grow_to[i - 1]), i - 1);
    }
    plan.bind(std::make_unique<PipelineSchedule>(kind_, chunks_));
  }

 private:
  int size_ = 1, chunks_ = 1;
  std::string kind_;
};

}  // namespace

ORTHANT_PLUGIN("pipeline", Pipeline)
