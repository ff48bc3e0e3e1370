// Sums of gradients that carry only their largest elements. Each rank adds what earlier steps left over to its
// gradient, keeps the `density` of it that is largest in size, and remembers the rest for the next step (error
// feedback).
//
// Papers: Stich et al., "Sparsified SGD with Memory" (2018), algorithm 1; Lin et al., "Deep Gradient Compression"
// (2018), section 3.1.
//
// The choice is made in each parameter by itself. Ranks that hold copies of one parameter, beside different parts of
// others, so choose the same elements of it, and the copies stay equal.
//
// Where ranks hold whole gradients, indices and values travel instead of zeros. Where they hold shards of them, the
// keeper behind this one sums what is left. Both give the same bits: sums run in the order of the ranks.
#include <orthant/plugin.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace {

using namespace orthant;

// Adds `left` to `grad`, keeps the `chosen` largest elements in `grad`, and the others in `left`. Ties go to the lower
// index, so the choice is one in every run.
void select(float* grad, float* left, std::int64_t elements, std::int64_t chosen) {
  std::vector<std::int64_t> order(elements);
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = 0; i < elements; ++i) {
    left[i] += grad[i];
    grad[i] = 0;
  }
  std::nth_element(order.begin(), order.begin() + chosen, order.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = std::abs(left[a]), y = std::abs(left[b]);
    return x > y || (x == y && a < b);
  });
  for (std::int64_t i = 0; i < chosen; ++i) {
    const std::int64_t at = order[i];
    std::swap(grad[at], left[at]);
  }
}

// The elements of `grad` that are not zero, in order; what is not used of the lists is index 0 and value 0.
void list(std::int32_t* index, float* value, std::int64_t room, const float* grad, std::int64_t elements) {
  std::fill_n(index, room, 0);
  std::fill_n(value, room, 0.0f);
  for (std::int64_t i = 0, n = 0; i < elements && n < room; ++i) {
    if (grad[i] != 0) {
      index[n] = static_cast<std::int32_t>(i);
      value[n++] = grad[i];
    }
  }
}

class TopkSums final : public Keeper {
 public:
  explicit TopkSums(double density) : density_(density) {}

  Sums sums() const override { return density_ < 1 ? Sums::all : Sums::none; }

  // What ranks have left over adds up: in another layout nothing of it is lost.
  std::vector<StateSpec> state(const ParamGroup&) const override {
    return density_ < 1 ? std::vector<StateSpec>{{.name = "residual", .kind = StateKind::summed}}
                        : std::vector<StateSpec>{};
  }

  void grad_ready(ParamGroup& group, const HookContext& at) override {
    if (density_ == 1) {
      return;
    }
    struct Choice {
      std::int64_t begin, elements, chosen;
    };
    std::vector<Choice> choices;
    for (const Param& p : group.params) {
      choices.push_back({p.begin, p.elements(), chosen_of(p)});
    }
    const Tensor grad = group.grad, left = group.state("topk_sums", "residual").tensor;
    on_host(at.stream, [grad, left, choices](Device& device) {
      const auto g = device.host_view(grad, Access::read_write), l = device.host_view(left, Access::read_write);
      for (const Choice& c : choices) {
        select(g->as<float>() + c.begin, l->as<float>() + c.begin, c.elements, c.chosen);
      }
    });
  }

  // Ranks on several stages meet only when all layers have run; shards are summed by whoever made them.
  bool sum_grads(ParamGroup& group, const HookContext& at) override {
    if (density_ == 1 || group.sum->size() == 1 || !group.whole_grad) {
      return false;
    }
    if (group.scattered) {
      late_.push_back(&group);
    } else {
      exchange(group, at.stream);
    }
    return true;
  }

  void finish_sums(const HookContext& at) override {
    std::sort(late_.begin(), late_.end(), [](const ParamGroup* a, const ParamGroup* b) { return a->id < b->id; });
    for (ParamGroup* group : late_) {
      exchange(*group, at.stream);
    }
    late_.clear();
  }

 private:
  std::int64_t chosen_of(const Param& p) const {
    return std::clamp<std::int64_t>(std::llround(density_ * static_cast<double>(p.elements())), 1, p.elements());
  }
  std::int64_t chosen_of(const ParamGroup& group) const {
    return std::accumulate(group.params.begin(), group.params.end(), std::int64_t{0},
                           [&](std::int64_t sum, const Param& p) { return sum + chosen_of(p); });
  }

  static void on_host(Stream& s, std::function<void(Device&)> work) {
    Device* device = &s.device();
    s.host([device, work = std::move(work)] { work(*device); });
  }

  // Every rank's indices and values to every rank, which adds them up in the order of the ranks.
  void exchange(ParamGroup& group, Stream& s) const {
    const std::int64_t chosen = chosen_of(group), ranks = group.sum->size(), elements = group.elements;
    Device& device = s.device();
    const Tensor index = device.empty(DType::i32, {chosen}), value = device.empty(DType::f32, {chosen});
    const Tensor all_index = device.empty(DType::i32, {ranks * chosen});
    const Tensor all_value = device.empty(DType::f32, {ranks * chosen}), grad = group.grad;
    on_host(s, [=](Device& on) {
      const auto i = on.host_view(index, Access::write), v = on.host_view(value, Access::write);
      list(i->as<std::int32_t>(), v->as<float>(), chosen, on.host_view(grad, Access::read)->as<float>(), elements);
    });
    group.sum->all_gather(all_index, index, s);
    group.sum->all_gather(all_value, value, s);
    s.fill(grad, 0);
    on_host(s, [=](Device& on) {
      const auto i = on.host_view(all_index, Access::read), v = on.host_view(all_value, Access::read);
      const auto g = on.host_view(grad, Access::read_write);
      for (std::int64_t n = 0; n < ranks * chosen; ++n) {
        g->as<float>()[i->as<std::int32_t>()[n]] += v->as<float>()[n];
      }
    });
  }

  double density_;
  std::vector<ParamGroup*> late_;
};

class Topk final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "density",
             .default_value = 0.1,
             .help = "Share of each group's gradient that a rank sends in a step; 1: all of it.",
             .minimum = 1e-6,
             .maximum = 1}};
  }
  void claim(Mesh&, const Table& config) override { density_ = config.number("density"); }
  // A rank's largest elements are another choice than those of the sum.
  Mathematics mathematics() const override { return density_ < 1 ? Mathematics::of_ranks : Mathematics::unchanged; }
  void plan(Plan& plan, Mesh&) override { plan.chain(std::make_unique<TopkSums>(density_)); }

 private:
  double density_ = 1;
};

}  // namespace

ORTHANT_PLUGIN("topk_sums", Topk)
