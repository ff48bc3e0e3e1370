// DiLoCo: workers train a model each, and now and then take one outer step together along what they have moved by.
//
// Papers: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), algorithm 1;
// with fragments Douillard et al., "Streaming DiLoCo with overlapping communication" (2025), section 2.2. With
// outer_lr = 1 and outer_momentum = 0 it is Local SGD (Stich, 2019).
//
// With a the weights of the last outer step, w_r those of worker r and n workers:
//   d = a - mean of w_r;  v <- outer_momentum v + d;  a <- a - outer_lr (outer_momentum v + d) (Nesterov);  w_r <- a
//
// The axis is independent: scales, norms, clipping, shards and moments are a worker's own, and checkpoints hold every
// worker's weights. What the outer step remembers is the same on all workers.
#include <orthant/plugin.h>

#include <algorithm>
#include <memory>
#include <string>

#include <orthant/group.h>
#include <orthant/keeper.h>
#include <orthant/mesh.h>

#include "codes.h"

namespace orthant::compress {
namespace {

struct OuterOptions {
  std::int64_t every = 1, fragments = 1;
  double lr = 1, momentum = 0;
  bool coded = false;  // exchange = "int8"
};

class OuterStep final : public Keeper {
 public:
  OuterStep(Group& workers, const OuterOptions& options) : workers_(workers), options_(options) {}

  std::vector<StateSpec> state(const ParamGroup&) const override { return {{.name = "anchor"}, {.name = "velocity"}}; }

  // Each rank works on what it owns, with the ranks that own the same in other workers. Whoever shards weights spreads
  // the result within the worker.
  void weight_ready(ParamGroup& group, Change why, const HookContext& at) override {
    PluginState& anchor = group.state("diloco", "anchor");
    if (group.owned_elements == 0) {
      return;
    }
    if (why != Change::updated) {
      if (why == Change::start || !anchor.restored) {
        at.stream.copy(anchor.tensor, group.master);
      }
      return;
    }
    if (!is_due(group, at.step) || workers_.size() == 1) {
      return;
    }
    take_step(group, anchor.tensor, group.state("diloco", "velocity").tensor, at.stream);
    if (group.owned_weight.dtype() != group.master.dtype()) {  // else they are one
      at.stream.cast(group.owned_weight, group.master);
    }
  }

 private:
  // Fragments are layers in turn, and their outer steps are spread evenly over `every` steps. Copies of a parameter on
  // several stages have one turn: that of the first layer of the model that uses it.
  bool is_due(const ParamGroup& group, std::int64_t step) const {
    const std::int64_t fragment = group.params.front().spec.layers.front() % options_.fragments;
    return (step + 1 + fragment * options_.every / options_.fragments) % options_.every == 0;
  }

  // The sum over workers of a - w_r, the same on all of them.
  Tensor moved(const Tensor& anchor, const Tensor& master, Stream& s) const {
    const std::int64_t elements = master.elements();
    const Tensor sum = s.device().empty(DType::f32, {elements});
    s.apply({.name = "diloco/moved", .inputs = {anchor, master}, .outputs = {sum}, .host = [](const HostArguments& a) {
               const auto from = a.input<float>(0), to = a.input<float>(1);
               std::transform(from.begin(), from.end(), to.begin(), a.output<float>(0).begin(), std::minus<>());
             }});
    if (!options_.coded) {
      workers_.all_reduce(sum, ReduceOp::sum, s);
      return sum;
    }
    const Code code{.method = Method::int8};
    const std::int64_t bytes = code.bytes(elements), workers = workers_.size();
    const Tensor own = s.device().empty(DType::u8, {bytes}), all = s.device().empty(DType::u8, {workers * bytes});
    s.apply({.name = "diloco/encode", .inputs = {sum}, .outputs = {own}, .host = [code](const HostArguments& a) {
               std::vector<float> lost(a.input<float>(0).size(), 0.0f);
               encode(code, a.output<std::uint8_t>(0), a.input<float>(0), lost);
             }});
    workers_.all_gather(all, own, s);
    s.apply({.name = "diloco/sum",
             .inputs = {all},
             .outputs = {sum},
             .host = [code, bytes, workers](const HostArguments& a) {
               std::fill(a.output<float>(0).begin(), a.output<float>(0).end(), 0.0f);
               for (std::int64_t r = 0; r < workers; ++r) {
                 add_decoded(code, a.output<float>(0),
                             a.input<std::uint8_t>(0).subspan(static_cast<std::size_t>(r * bytes),
                                                              static_cast<std::size_t>(bytes)));
               }
             }});
    return sum;
  }

  void take_step(ParamGroup& group, const Tensor& anchor, const Tensor& velocity, Stream& s) const {
    s.apply({.name = "diloco/outer_step",
             .inputs = {moved(anchor, group.master, s), anchor, velocity},
             .outputs = {anchor, velocity, group.master},
             .host = [lr = options_.lr, momentum = options_.momentum,
                      workers = static_cast<double>(workers_.size())](const HostArguments& a) {
               const auto sum = a.input<float>(0);
               const auto from = a.output<float>(0), speed = a.output<float>(1), weights = a.output<float>(2);
               for (std::size_t i = 0; i < sum.size(); ++i) {
                 const double d = static_cast<double>(sum[i]) / workers;
                 const double v = momentum * static_cast<double>(speed[i]) + d;
                 speed[i] = static_cast<float>(v);
                 from[i] = static_cast<float>(static_cast<double>(from[i]) - lr * (momentum * v + d));
                 weights[i] = from[i];
               }
             }});
  }

  Group& workers_;
  OuterOptions options_;
};

class Diloco final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Workers.", .minimum = 1},
            {.name = "every",
             .default_value = std::int64_t{32},
             .help = "Steps that each worker takes by itself between two outer steps.",
             .minimum = 1},
            {.name = "outer_lr",
             .default_value = 0.7,
             .help = "Rate of the outer step; 1: weights are averaged.",
             .minimum = 0},
            {.name = "outer_momentum",
             .default_value = 0.9,
             .help = "Nesterov's, of the outer step (below 1).",
             .minimum = 0,
             .maximum = 0.9999},
            {.name = "fragments",
             .default_value = std::int64_t{1},
             .help = "Layers take their outer steps in so many turns, spread over `every` steps.",
             .minimum = 1},
            {.name = "exchange",
             .default_value = std::string("fp32"),
             .help = "What workers exchange: fp32, or int8 with a scale for each 256 elements.",
             .choices = {"fp32", "int8"}}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    size_ = static_cast<int>(config.integer("size"));
    options_ = {.every = config.integer("every"),
                .fragments = config.integer("fragments"),
                .lr = config.number("outer_lr"),
                .momentum = config.number("outer_momentum"),
                .coded = config.text("exchange") == "int8"};
    if (options_.fragments > options_.every) {
      throw SettingError("plugins.diloco.fragments",
                         fmt::format("[plugins.diloco] fragments: {} turns do not fit into {} steps\nwrite at most {}",
                                     options_.fragments, options_.every, options_.every));
    }
    axis_ = mesh.claim({.name = "diloco", .size = size_, .splits = {Dim::batch}, .independent = true});
  }
  Mathematics mathematics() const override { return size_ > 1 ? Mathematics::of_ranks : Mathematics::unchanged; }
  void plan(Plan& plan, Mesh& mesh) override { plan.chain(std::make_unique<OuterStep>(mesh.group(axis_), options_)); }

 private:
  AxisId axis_ = 0;
  int size_ = 1;
  OuterOptions options_;
};

}  // namespace
}  // namespace orthant::compress

ORTHANT_PLUGIN("diloco", orthant::compress::Diloco)
