// The routed experts of one rank in fused kernels: rows are gathered by the products themselves instead of being
// packed, and activations are applied, forwards and backwards, where the products end (expert_engine.h). bf16 only.
// Whether they are used: choose_kernels.h.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/launch.h"
#include "experts/cuda/expert_kernels.h"
#include "experts/cuda/ffn_products.h"
#include "experts/cuda/packed_ffn.h"
#include "experts/cuda/tile_order.h"

namespace orthant::cuda {
namespace {

// dweight [choices]: the sum of the parts [rows, count] of a choice's row, in order; 0 where it has none.
__global__ void sum_parts(float* dweight, const float* partial, const std::int32_t* row, std::int64_t choices,
                          std::int64_t count) {
  const std::int64_t choice = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (choice >= choices) {
    return;
  }
  float sum = 0.0f;
  for (std::int64_t part = 0; part < count && row[choice] >= 0; ++part) {
    sum += partial[row[choice] * count + part];
  }
  dweight[choice] = sum;
}

void check_ffn(const Tensor& x, const Tensor& h, const Tensor& w_in, const Tensor& w_out, const Dispatch& to,
               Activation kind) {
  const std::int64_t experts = to.offset.elements() - 1, d = x.dim(1), n = h.dim(1), rows = h.dim(0);
  const std::int64_t f = is_gated(kind) ? n / 2 : n;
  require(w_in.shape() == Shape({experts, n, d}) && w_out.shape() == Shape({experts, d, f}) &&
              w_in.dtype() == x.dtype() && w_out.dtype() == x.dtype() && h.dtype() == x.dtype() &&
              to.source.elements() >= rows && to.row.dim(0) == x.dim(0) && to.weight.shape() == to.row.shape(),
          "expert_ffn: x {}, h {}, w_in {}, w_out {}, row {} and source {} do not fit", x.shape(), h.shape(),
          w_in.shape(), w_out.shape(), to.row.shape(), to.source.shape());
}

Gather rows_of_tokens(const Dispatch& to) {
  return {to.source.as<std::int32_t>(), static_cast<std::int32_t>(to.row.dim(1))};
}

}  // namespace

void CudaStream::expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                            const Dispatch& to, Activation kind) {
  check_ffn(x, h, w_in, w_out, to, kind);
  const std::int64_t rows = h.dim(0), f = w_out.dim(2);
  const GroupedProblem in = ffn_product(GroupedLayout::nt, x, w_in, h, to, rows);
  const ExpertMeans means = expert_means(device_);
  if (!choose_fused(means, in, planned_product(GroupedLayout::nt, nullptr, w_out, to, rows), x.dtype())) {
    if (packed_ffn_fits(*this, x, h, w_in, w_out, {}, {}, to)) {
      return packed_ffn(*this, y, h, x, w_in, w_out, to, kind);
    }
    return Stream::expert_ffn(y, h, x, w_in, w_out, to, kind);
  }
  const Tensor a = device_.empty(x.dtype(), {rows, f}), out = device_.empty(x.dtype(), {rows, x.dim(1)});
  mma_engine.activate(*this, in, rows_of_tokens(to), a.data(), kind);
  mma_engine.multiply(*this, ffn_product(GroupedLayout::nt, a, w_out, out, to, rows), x.dtype(), {}, {});
  combine(y, out, to.row, to.weight, false);
}

void CudaStream::expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                                     const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                                     const Tensor& w_out, const Dispatch& to, Activation kind, float beta) {
  check_ffn(x, h, w_in, w_out, to, kind);
  const std::int64_t rows = h.dim(0), d = x.dim(1), f = w_out.dim(2);
  const ExpertMeans means = expert_means(device_);
  if (!choose_fused(means, planned_product(GroupedLayout::nn, nullptr, w_in, to, rows),
                    planned_product(GroupedLayout::nn, dy.data(), w_out, to, rows), x.dtype())) {
    if (packed_ffn_fits(*this, x, h, w_in, w_out, dw_in, dw_out, to)) {
      return packed_ffn_backward(*this, dx, dweight, dw_in, dw_out, dy, x, h, w_in, w_out, to, kind, beta);
    }
    return Stream::expert_ffn_backward(dx, dweight, dw_in, dw_out, dy, x, h, w_in, w_out, to, kind, beta);
  }
  const Tensor dh = device_.empty(x.dtype(), h.shape()), dx_rows = device_.empty(x.dtype(), {rows, d});
  const GroupedProblem in_dx = ffn_product(GroupedLayout::nn, dh, w_in, dx_rows, to, rows);
  GroupedProblem out_dx = ffn_product(GroupedLayout::nn, dy, w_out, dx_rows, to, rows);
  out_dx.c = nullptr;
  const Gather gather = rows_of_tokens(to);
  {
    const std::int64_t count = parts(f, mma_engine.part_columns);
    const Tensor a = device_.empty(x.dtype(), {rows, f}), partial = device_.empty(DType::f32, {rows, count});
    mma_engine.weigh(*this, out_dx, gather,
                     {.h = h.data(),
                      .dh = dh.data(),
                      .act = a.data(),
                      .weight = to.weight.as<float>(),
                      .source = to.source.as<std::int32_t>(),
                      .partial = partial.as<float>()},
                     kind);
    launch(sum_parts, Grid{blocks_for(dweight.elements(), 256), 256}, stream_, dweight.as<float>(), partial.as<float>(),
           to.row.as<std::int32_t>(), dweight.elements(), count);
    mma_engine.multiply(*this, ffn_product(GroupedLayout::tn, dy, a, dw_out, to, rows, beta), DType::f32, gather, {});
  }
  mma_engine.multiply(*this, ffn_product(GroupedLayout::tn, dh, x, dw_in, to, rows, beta), DType::f32, {}, gather);
  mma_engine.multiply(*this, in_dx, x.dtype(), {}, {});
  pack_backward(dx, dx_rows, to.row, false);
}

}  // namespace orthant::cuda
