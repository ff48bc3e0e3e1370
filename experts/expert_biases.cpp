#include "experts/expert_biases.h"

namespace orthant {
namespace {

constexpr std::size_t suffix = std::string_view(".weight").size();

ParamMatrix biases_of(const ParamStore& store, const std::vector<Param>& weights, std::size_t begin, std::size_t end) {
  std::vector<ParamRef> refs;
  for (std::size_t i = begin; i < end; ++i) {
    const std::string& name = weights[i].spec.name;
    refs.push_back(store.ref(name.substr(0, name.size() - suffix) + ".bias"));
  }
  return ParamMatrix(refs);
}

Tensor ones(const StepContext& ctx, const Tensor& rows) {
  Tensor column = ctx.device().empty(rows.dtype(), {rows.dim(0), 1});
  ctx.stream.fill(column, 1);
  return column;
}

Tensor of_experts(const Tensor& flat, std::int64_t all, const Range& experts) {
  return flat.view({all, 1, flat.elements() / all}).rows(experts.begin, experts.count);
}

}  // namespace

ExpertBiases::ExpertBiases(const ParamStore& store, const std::vector<Param>& weights, std::int64_t experts,
                           std::int64_t n)
    : in_(biases_of(store, weights, 0, weights.size() - static_cast<std::size_t>(experts))),
      out_(biases_of(store, weights, weights.size() - static_cast<std::size_t>(experts), weights.size())),
      experts_(experts),
      n_(n),
      d_(weights.front().size[1]),
      adds_out_(weights.front().offset[0] == 0) {}

Tensor ExpertBiases::in(const Tensor& flat, const Range& experts) const {
  require(flat.elements() == experts_ * n_, "{} experts have {} first biases, {} each were expected", experts_,
          flat.elements(), n_);
  return of_experts(flat, experts_, experts);
}

Tensor ExpertBiases::out(const Tensor& flat, const Range& experts) const {
  require(flat.elements() == experts_ * d_, "{} experts have {} second biases, {} each were expected", experts_,
          flat.elements(), d_);
  return of_experts(flat, experts_, experts);
}

void ExpertBiases::add_in(const StepContext& ctx, const Tensor& h, const Tensor& offset, const Range& experts) const {
  ctx.stream.grouped_gemm(h, ones(ctx, h), in(in_.weight(), experts), offset, {.beta = 1});
}

void ExpertBiases::add_out(const StepContext& ctx, const Tensor& y, const Tensor& offset, const Range& experts) const {
  if (adds_out_) {
    ctx.stream.grouped_gemm(y, ones(ctx, y), out(out_.weight(), experts), offset, {.beta = 1});
  }
}

void ExpertBiases::backward(const StepContext& ctx, const Tensor& dweight, const Tensor& dh, const Tensor& dy,
                            const Tensor& weight, const Tensor& offset, const Range& experts) const {
  Stream& s = ctx.stream;
  s.fill(dweight, 0);
  if (adds_out_) {
    s.grouped_gemm(dweight, dy, out(out_.weight(), experts), offset, {.transpose_b = true});
  }
  if (const Tensor grad = in_.wanted_grad(); grad.defined()) {
    s.grouped_gemm_tn(in(grad, experts), ones(ctx, dh), dh, offset, 1);
  }
  if (const Tensor grad = out_.wanted_grad(); grad.defined()) {
    Tensor column = weight;
    if (weight.dtype() != dy.dtype()) {
      column = ctx.device().empty(dy.dtype(), weight.shape());
      s.cast(column, weight);
    }
    s.grouped_gemm_tn(out(grad, experts), column, dy, offset, 1);
  }
}

}  // namespace orthant
