#include <orthant/plugin.h>

using namespace orthant;

namespace {

Tensor summed(Group& group, Tensor x, Stream& s) {
  group.all_reduce(x, ReduceOp::sum, s);
  return x;
}
// Entering the FFN all ranks have the same x [T, d], and each adds its part to the gradient; leaving it each has the
// sum over its own channels.
struct Enter final : Boundary {
  explicit Enter(Group& g) : group(g) {}
  Tensor forward(Tensor x, Stream&) override { return x; }
  Tensor backward(Tensor dy, Stream& s) override { return summed(group, dy, s); }
  Group& group;
};
struct Leave final : Boundary {
  explicit Leave(Group& g) : group(g) {}
  Tensor forward(Tensor x, Stream& s) override { return summed(group, x, s); }
  Tensor backward(Tensor dy, Stream&) override { return dy; }
  Group& group;
};

class Channels final : public Plugin {
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Ranks that split FFN channels.", .minimum = 1}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    const int size = static_cast<int>(config.integer("size"));
    const std::vector<RegionDim> but = {{Region::experts, Dim::ffn}};  // routed experts stay whole
    axis_ = mesh.claim({.name = "channels", .size = size, .splits = {Dim::ffn}, .joins_in = but});
  }
  void plan(Plan& plan, Mesh& mesh) override {
    Group& group = mesh.group(axis_);
    plan.bind({Region::ffn, Side::enter}, std::make_unique<Enter>(group), Dim::ffn);
    plan.bind({Region::ffn, Side::leave}, std::make_unique<Leave>(group), Dim::ffn);
  }
  AxisId axis_ = 0;
};

}  // namespace

ORTHANT_PLUGIN("channels", Channels)
