// sparsemixer: the two experts of greatest logits. Each weighs its softmax among the experts that compete with it:
// those whose logits are not far below its own, without the first one for the second. Liu et al., "Sparse
// Backpropagation for MoE Training" (2023), in the form of Abdin et al., "Phi-3" (2024): Phi-3.5-MoE as it is served.
// Nothing is sampled in training either, and weights have their own gradient.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "router/gates.h"

namespace orthant {
namespace {

// The softmax of a token's logits among those that compete with `best`; 0 for others, and for `without` (-1: none).
void compete(std::span<float> p, std::span<const float> logits, std::int64_t best, std::int64_t without, float width) {
  const float top = logits[static_cast<std::size_t>(best)];
  float sum = 0;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const float size = std::max(std::abs(logits[e]), top);
    const bool far = (top - logits[e]) / size > 2 * width;
    p[e] = far || static_cast<std::int64_t>(e) == without ? 0 : std::exp(logits[e] - top);
    sum += p[e];
  }
  for (float& share : p) {
    share /= sum;
  }
}

// Calls fn(choice, p, expert) for the two choices of each token that is no padding; p: as above.
template <class F>
void for_choices(std::span<const float> logits, std::span<const std::int32_t> expert, float width, F&& fn) {
  const std::size_t tokens = expert.size() / 2, experts = tokens == 0 ? 0 : logits.size() / tokens;
  std::vector<float> p(experts);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::span<const float> of_token = logits.subspan(t * experts, experts);
    for (std::size_t k = 0; k < 2; ++k) {
      const std::int32_t e = expert[2 * t + k];
      if (e >= 0) {
        compete(p, of_token, e, k == 0 ? -1 : expert[2 * t], width);
        fn(2 * t + k, std::span<const float>(p), static_cast<std::size_t>(e));
      }
    }
  }
}

struct SparsemixerKeys {
  double sparsemixer_width = 0.01;  // experts that fall further below the best one do not compete
  static const Keys<SparsemixerKeys>& keys() {
    static const auto all =
        Keys<SparsemixerKeys>()
            .add("sparsemixer_width", &SparsemixerKeys::sparsemixer_width,
                 "sparsemixer: experts compete with the best one whose logits fall short of its by at most twice this "
                 "share (Phi-3.5-MoE's router_jitter_noise).",
                 between(0, 1e6))
            .after("group_score");
    return all;
  }
};

float width_of(const GateInput& from) {
  return static_cast<float>(read_keys<SparsemixerKeys>(from.moe->own).sparsemixer_width);
}

class SparsemixerGate final : public Gate {
 public:
  std::vector<KindKey> keys() const override { return SparsemixerKeys::keys().declared(); }

  std::vector<Refusal> refusals(const Settings& settings) const override {
    std::vector<Refusal> found;
    refuse_other_top_k(found, settings.moe, "sparsemixer", 2);
    refuse_sigmoid(found, settings.moe);
    refuse_expert_groups(found, settings.moe, "sparsemixer");
    if (read_keys<ChoiceKeys>(settings.moe.own).normalize_weights) {
      found.push_back({{"moe.normalize_weights", "moe.router"},
                       "[moe] normalize_weights: router \"sparsemixer\" weighs each of its two experts by itself",
                       "write normalize_weights = false"});
    }
    return found;
  }

  bool greatest_logits(const MoeSettings&) const override { return true; }

  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    s.choose_experts(to.expert, from.logits, {}, from.valid, config);
    s.gate_choices(to.weight, to.lse, to.chosen, to.share, to.expert, from.logits, from.valid, config);
    s.apply({.name = "sparsemixer/weights",
             .inputs = {from.logits, to.expert},
             .outputs = {to.weight},
             .host = [width = width_of(from)](const HostArguments& a) {
               const std::span<float> weight = a.output<float>(0);
               std::fill(weight.begin(), weight.end(), 0.0f);
               for_choices(a.input<float>(0), a.input<std::int32_t>(1), width,
                           [&](std::size_t choice, std::span<const float> p, std::size_t e) { weight[choice] = p[e]; });
             }});
  }

  void backward(const Tensor& dlogits, const Tensor& dweight, const GateChoice& made, const GateInput& from,
                float aux_scale, float z_scale, const GateConfig& config, Stream& s) const override {
    const Tensor none = s.device().empty(DType::f32, dweight.shape());
    s.fill(none, 0);
    Gate::backward(dlogits, none, made, from, aux_scale, z_scale, config, s);
    s.apply({.name = "sparsemixer/gradient",
             .inputs = {from.logits, made.expert, dweight, dlogits},
             .outputs = {dlogits},
             .host = [width = width_of(from)](const HostArguments& a) {
               const std::span<const float> dw = a.input<float>(2);
               const std::span<float> d = a.output<float>(0);
               for_choices(a.input<float>(0), a.input<std::int32_t>(1), width,
                           [&](std::size_t choice, std::span<const float> p, std::size_t e) {
                             const std::size_t token = choice / 2 * p.size();
                             for (std::size_t j = 0; j < p.size(); ++j) {
                               d[token + j] += dw[choice] * p[e] * ((j == e ? 1.0f : 0.0f) - p[j]);
                             }
                           });
             }});
  }
};

}  // namespace

std::shared_ptr<const Gate> make_sparsemixer_gate() {
  return std::make_shared<SparsemixerGate>();
}

}  // namespace orthant
