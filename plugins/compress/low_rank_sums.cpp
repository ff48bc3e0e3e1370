#include "low_rank_sums.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <orthant/device.h>
#include <orthant/group.h>
#include <orthant/random.h>

namespace orthant::compress {
namespace {

// The factors of one parameter among those of its group.
struct Factors {
  Tensor matrix, left;  // [m, n]: the gradient, and what is left over
  Tensor p, q;          // [m, r], [n, r]
  Tensor product;       // [m, n]
};

// Columns [rows, r] become orthogonal and of length 1, one after the other; one that is zero but for rounding stays
// zero. In fp64, so that the order of rows does not matter more than it must.
void make_orthogonal(std::span<float> x, std::size_t rows, std::size_t columns) {
  std::vector<double> done(x.begin(), x.end());
  const auto at = [&](std::size_t row, std::size_t column) -> double& { return done[row * columns + column]; };
  for (std::size_t c = 0; c < columns; ++c) {
    double before = 0, after = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      before += at(i, c) * at(i, c);
    }
    for (std::size_t other = 0; other < c; ++other) {
      double dot = 0;
      for (std::size_t i = 0; i < rows; ++i) {
        dot += at(i, c) * at(i, other);
      }
      for (std::size_t i = 0; i < rows; ++i) {
        at(i, c) -= dot * at(i, other);
      }
    }
    for (std::size_t i = 0; i < rows; ++i) {
      after += at(i, c) * at(i, c);
    }
    const double scale = after > 1e-12 * before ? 1 / std::sqrt(after) : std::isnan(after) ? after : 0;
    for (std::size_t i = 0; i < rows; ++i) {
      at(i, c) *= scale;
    }
  }
  std::transform(done.begin(), done.end(), x.begin(), [](double value) { return static_cast<float>(value); });
}

std::uint32_t site_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash;
}

}  // namespace

bool LowRankSums::factored(const Param& p) const {
  const Shape shape = ParamGroup::shape_of(p);
  return shape.rank() == 2 && options_.rank * (shape[0] + shape[1]) < shape[0] * shape[1];
}

std::int64_t LowRankSums::columns(const ParamGroup& group) const {
  std::int64_t sum = 0;
  for (const Param& p : group.params) {
    sum += factored(p) ? p.size[1] : 0;
  }
  return sum;
}

std::vector<StateSpec> LowRankSums::state(const ParamGroup& group) const {
  refuse_shards(group);
  return {
      {.name = "residual", .kind = StateKind::summed},
      {.name = "q", .kind = StateKind::per_rank, .shape = {std::max<std::int64_t>(columns(group), 1), options_.rank}}};
}

// Where q is zero, as at the start and in another layout: random numbers, the same on all ranks of the sum.
void LowRankSums::begin(ParamGroup& group, const Tensor& q, Stream& s) const {
  struct Rows {
    std::int64_t begin, count;
    std::uint32_t site;
  };
  std::vector<Rows> of;
  std::int64_t row = 0;
  for (const Param& p : group.params) {
    if (factored(p)) {
      of.push_back({row, p.size[1], site_of(p.spec.name)});
      row += p.size[1];
    }
  }
  s.apply({.name = "compress/begin",
           .inputs = {q},
           .outputs = {q},
           .host = [of, rank = options_.rank, seed = options_.seed](const HostArguments& a) {
             const auto values = a.output<float>(0);
             if (std::any_of(values.begin(), values.end(), [](float value) { return value != 0; })) {
               return;
             }
             for (const Rows& rows : of) {
               const RandomKey key{seed, Purpose::weight, rows.site, 0};
               for (std::int64_t i = 0; i < rows.count * rank; ++i) {
                 values[static_cast<std::size_t>(rows.begin * rank + i)] =
                     static_cast<float>(philox(key, static_cast<std::uint64_t>(i)).v[0]) / 2147483648.0f - 1.0f;
               }
             }
           }});
}

void LowRankSums::sum(ParamGroup& group, const HookContext& at) {
  Stream& s = at.stream;
  Device& device = s.device();
  const std::int64_t elements = group.elements, rank = options_.rank;
  const Tensor grad = group.grad.slice(0, {elements});
  const Tensor residual = group.state("compress", "residual").tensor.slice(0, {elements});
  const Tensor q_kept = group.state("compress", "q").tensor;
  begin(group, q_kept, s);
  s.add(grad, residual);

  std::int64_t rows = 0, plain = 0, widest = 1;
  for (const Param& p : group.params) {
    rows += factored(p) ? p.size[0] : 0;
    plain += factored(p) ? 0 : p.elements();
    widest = std::max(widest, factored(p) ? p.elements() : 0);
  }
  // One buffer for each of the two sums: the factors P and what has none, then the factors Q'.
  const Tensor first = device.empty(DType::f32, {std::max<std::int64_t>(rows * rank + plain, 1)});
  const Tensor q_new = device.empty(DType::f32, q_kept.shape());
  const Tensor product = device.empty(DType::f32, {widest}), left = device.empty(DType::f32, {elements});
  s.fill(q_new, 0);
  s.fill(first, 0);
  s.fill(left, 0);
  std::vector<Factors> factors;
  std::int64_t row = 0, column = 0, other = rows * rank;
  for (const Param& p : group.params) {
    const Shape shape = ParamGroup::shape_of(p);
    if (!factored(p)) {
      s.copy(first.slice(other, {p.elements()}), grad.slice(p.begin, {p.elements()}));
      other += p.elements();
      continue;
    }
    factors.push_back({.matrix = grad.slice(p.begin, shape),
                       .left = left.slice(p.begin, shape),
                       .p = first.slice(row * rank, {shape[0], rank}),
                       .q = q_new.rows(column, shape[1]),
                       .product = product.slice(0, shape)});
    s.gemm(factors.back().p, factors.back().matrix, q_kept.rows(column, shape[1]), {});
    row += shape[0];
    column += shape[1];
  }
  group.sum->all_reduce(first, ReduceOp::sum, s);
  for (const Factors& f : factors) {
    s.apply({.name = "compress/orthogonal", .inputs = {f.p}, .outputs = {f.p}, .host = [](const HostArguments& a) {
               const Shape& shape = a.output_shape(0);
               make_orthogonal(a.output<float>(0), static_cast<std::size_t>(shape[0]),
                               static_cast<std::size_t>(shape[1]));
             }});
    s.gemm(f.q, f.matrix, f.p, {.transpose_a = true});
  }
  group.sum->all_reduce(q_new, ReduceOp::sum, s);
  const float share = -1.0f / static_cast<float>(group.sum->size());
  for (const Factors& f : factors) {
    s.gemm(f.product, f.p, f.q, {.transpose_b = true});
    s.copy(f.left, f.product);
    s.scale(f.left, share);
    s.add(f.left, f.matrix);
    s.copy(f.matrix, f.product);
  }
  other = rows * rank;
  for (const Param& p : group.params) {
    if (!factored(p)) {
      s.copy(grad.slice(p.begin, {p.elements()}), first.slice(other, {p.elements()}));
      other += p.elements();
    }
  }
  // What is not finite is in the sum, and the core leaves out the step: nothing of it is remembered.
  s.apply({.name = "compress/keep",
           .inputs = {grad, left, q_new, residual, q_kept},
           .outputs = {residual, q_kept},
           .host = [](const HostArguments& a) {
             const auto sum = a.input<float>(0), lost = a.input<float>(1), next = a.input<float>(2);
             if (std::all_of(sum.begin(), sum.end(), [](float value) { return std::isfinite(value); })) {
               std::copy(lost.begin(), lost.end(), a.output<float>(0).begin());
               std::copy(next.begin(), next.end(), a.output<float>(1).begin());
             }
           }});
}

}  // namespace orthant::compress
