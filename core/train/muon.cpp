// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): the momentum of a matrix is
// replaced by the nearest orthogonal one, nearly, by five steps of a Newton-Schulz iteration. Scaled to the size of
// AdamW's updates, and with decoupled weight decay, as Liu et al., "Muon is Scalable for LLM Training" (2025): lr and
// weight_decay are then those of AdamW.
//
// Cost: fp32, 5 * (4 m^2 n + 2 m^3) operations for a matrix of m <= n, on each rank that owns a part of it.
#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/train/built_in_optimizers.h"

namespace orthant {
namespace {

enum Method { by_adamw, by_muon };

bool hidden_matrix(const ParamSpec& p) {
  return p.global.rank() == 2 &&
         (p.region == Region::attention || p.region == Region::ffn || p.region == Region::experts);
}

// x = a x + (b A + c A^2) x with A = x x^T, or the same from the right where x has fewer columns than rows.
void newton_schulz_step(const Tensor& x, Stream& s) {
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  Device& device = s.device();
  const bool wide = x.dim(0) <= x.dim(1);
  const std::int64_t m = std::min(x.dim(0), x.dim(1));
  const Tensor gram = device.empty(DType::f32, {m, m}), polynomial = device.empty(DType::f32, {m, m});
  s.gemm(gram, x, x, {.transpose_a = !wide, .transpose_b = wide});
  s.gemm(polynomial, gram, gram, {});
  s.scale(polynomial, c);
  s.scale(gram, b);
  s.add(polynomial, gram);
  const Tensor old = device.empty(DType::f32, x.shape());
  s.copy(old, x);
  s.scale(x, a);
  s.gemm(x, wide ? polynomial : old, wide ? old : polynomial, {.beta = 1.0f});
}

class Muon final : public Optimizer {
 public:
  std::vector<KindKey> keys() const override {
    std::vector<KindKey> all = AdamKeys::keys().declared(), own = MomentumKeys::keys().declared();
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  Treatment treatment(const ParamSpec& p, const OptimizerSettings&) const override {
    if (hidden_matrix(p)) {
      return {.states = {{"momentum"}}, .whole = true, .method = by_muon};
    }
    return {.states = {{"moment1"}, {"moment2"}}, .method = by_adamw};
  }

  // Nesterov's momentum: m = momentum m + g; out = g + momentum m. A step of SGD at rate 0 is the first, and once more
  // from there the second.
  void prepare(const Tensor& out, const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    const Sgd momentum{0.0f, static_cast<float>(read_keys<MomentumKeys>(step.settings.own).momentum), 0.0f};
    s.sgd(slice.master, slice.weight, slice.state[0], slice.grad, step.factor, momentum);
    s.copy(out, slice.state[0]);
    s.sgd(slice.master, slice.weight, out, slice.grad, step.factor, momentum);
  }

  void transform(const Tensor& whole, const UpdateStep&, Stream& s) const override {
    const Tensor squares = s.device().empty(DType::f64, {1});
    s.fill(squares, 0);
    s.sum_squares(squares, whole);
    s.normalize(whole, squares, 1e-7f);
    for (int i = 0; i < 5; ++i) {
      newton_schulz_step(whole, s);
    }
    // The root mean square of an orthogonal matrix is 1 / sqrt(longer side); that of AdamW's updates is about 0.2.
    s.scale(whole, 0.2f * std::sqrt(static_cast<float>(std::max(whole.dim(0), whole.dim(1)))));
  }

  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    if (step.method == by_muon) {
      s.descend(slice.master, slice.weight, slice.whole, step.finite, static_cast<float>(step.lr),
                static_cast<float>(step.weight_decay));
    } else {
      adamw_update(slice, step, s);
    }
  }
};

}  // namespace

std::shared_ptr<const Optimizer> make_muon() {
  return std::make_shared<Muon>();
}

}  // namespace orthant
