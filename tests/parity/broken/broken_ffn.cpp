// An axis that splits the channels of dense FFNs, as Megatron does, with a mistake where a region begins or ends.
// [plugins.broken_ffn] size, fault:
//   none       right: entering, gradients are summed; leaving, outputs are
//   no_sum     gradients are not summed entering (the identity where its adjoint is an all-reduce)
//   sum_twice  leaving, gradients are summed too, though they are the same on all ranks
//   mean       outputs are averaged
//   stale_add  the second rank's output is left out of the sum
#include <orthant/plugin.h>

namespace {

using namespace orthant;

Tensor summed(Group& group, Tensor t, Stream& s) {
  group.all_reduce(t, ReduceOp::sum, s);
  return t;
}

class Enter final : public Boundary {
 public:
  Enter(Group& group, std::string fault) : group_(group), fault_(std::move(fault)) {}
  Tensor forward(Tensor x, Stream&) override { return x; }
  Tensor backward(Tensor dy, Stream& s) override { return fault_ == "no_sum" ? dy : summed(group_, std::move(dy), s); }

 private:
  Group& group_;
  std::string fault_;
};

class Leave final : public Boundary {
 public:
  Leave(Group& group, std::string fault) : group_(group), fault_(std::move(fault)) {}
  Tensor forward(Tensor x, Stream& s) override {
    if (fault_ == "stale_add" && group_.rank() == 1) {
      s.fill(x, 0);
    }
    Tensor sum = summed(group_, std::move(x), s);
    if (fault_ == "mean") {
      s.scale(sum, 1.0f / static_cast<float>(group_.size()));
    }
    return sum;
  }
  Tensor backward(Tensor dy, Stream& s) override {
    if (fault_ != "sum_twice") {
      return dy;
    }
    Tensor copy = s.device().empty(dy.dtype(), dy.shape());  // the residual path keeps dy
    s.copy(copy, dy);
    return summed(group_, std::move(copy), s);
  }

 private:
  Group& group_;
  std::string fault_;
};

class BrokenFfn final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Ranks that split channels.", .minimum = 1},
            {.name = "fault", .default_value = std::string("none"), .help = "What is wrong."}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    axis_ = mesh.claim({.name = "broken_ffn", .size = static_cast<int>(config.integer("size")), .splits = {Dim::ffn}});
    fault_ = config.text("fault");
  }
  void plan(Plan& plan, Mesh& mesh) override {
    Group& group = mesh.group(axis_);
    plan.bind({Region::ffn, Side::enter}, std::make_unique<Enter>(group, fault_), Dim::ffn);
    plan.bind({Region::ffn, Side::leave}, std::make_unique<Leave>(group, fault_), Dim::ffn);
  }

 private:
  AxisId axis_ = 0;
  std::string fault_;
};

}  // namespace

ORTHANT_PLUGIN("broken_ffn", BrokenFfn)
