// The data axis: each rank takes its sequences of the global batch. Gradients are summed in buckets on a stream of
// their own while the backward pass goes on (Li et al., "PyTorch Distributed", VLDB 2020).
#include <orthant/plugin.h>

#include <algorithm>

namespace {

using namespace orthant;

class GradientSums final : public Keeper {
 public:
  GradientSums(Device* device, std::int64_t bucket_elements) : bucket_(bucket_elements) {
    if (device != nullptr) {
      side_ = device->make_side_stream();
    }
  }

  // Once a step and group: its gradients are complete.
  void sum_grads(ParamGroup& group, Stream& s) override {
    if (group.summed || group.sum->size() == 1) {
      return;
    }
    side_->wait(s.record());
    for (std::int64_t begin = 0; begin < group.elements; begin += bucket_) {
      const std::int64_t n = std::min(bucket_, group.elements - begin);
      group.sum->all_reduce(group.grad.slice(begin, {n}), ReduceOp::sum, *side_);
    }
    group.summed = true;
  }

  void before_step(Stream& s) override { s.wait(side_->record()); }

 private:
  std::unique_ptr<Stream> side_;
  std::int64_t bucket_;
};

class Data final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size",
             .default_value = std::int64_t{1},
             .help = "Ranks that split the batch.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "zero",
             .default_value = std::int64_t{0},
             .help = "ZeRO stage. Only 0 (every rank holds everything) is available so far.",
             .minimum = 0,
             .maximum = 0},
            {.name = "bucket_mb",
             .default_value = 4.0,
             .help = "Megabytes of gradients summed in one collective, while the backward pass goes on.",
             .minimum = 0.001,
             .maximum = 1e6}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    mesh.claim({.name = "data", .size = static_cast<int>(config.integer("size")), .splits = {Dim::batch}});
    bucket_elements_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(config.number("bucket_mb") * 1e6 / 4));
  }

  void plan(Plan& plan, Mesh&) override {
    plan.chain(std::make_unique<GradientSums>(plan.dry() ? nullptr : &plan.device(), bucket_elements_));
  }

 private:
  std::int64_t bucket_elements_ = 0;
};

}  // namespace

ORTHANT_PLUGIN("data", Data)
