// The routed experts of one rank in fused kernels: rows are gathered by the products themselves instead of being
// packed, and activations are applied, forwards and backwards, where the products end (mma_grouped.h). bf16 only.
//
// Used where our own matrix kernels are the fastest there are: on Hopper, CUTLASS's products of packed rows are ahead
// by more than the copies cost (about 2 R d (2 f + n) (1 / 400 - 1 / 650) TFLOP/s against 6 R d bytes and an
// activation's at 3.3 TB/s, by the rates that such kernels are known for; to be measured).
#include "core/cuda/cuda_stream.h"
#include "core/cuda/launch.h"
#include "experts/cuda/choose_tile.h"
#include "experts/cuda/mma_grouped.h"

namespace orthant::cuda {
namespace {

#if defined(ORTHANT_HAVE_CUTLASS)
constexpr bool have_cutlass = true;
#else
constexpr bool have_cutlass = false;
#endif

GroupedProblem product(GroupedLayout layout, const Tensor& a, const Tensor& b, const Tensor& c, const Dispatch& to,
                       std::int64_t rows, float beta = 0) {
  const std::int64_t experts = to.offset.elements() - 1;
  const bool tn = layout == GroupedLayout::tn;
  return {.layout = layout,
          .experts = experts,
          .rows = rows,
          .m = tn ? a.dim(1) : 0,
          .n = tn ? b.dim(1) : b.dim(layout == GroupedLayout::nt ? 1 : 2),
          .k = tn ? 0 : a.dim(1),
          .beta = beta,
          .a = a.data(),
          .b = b.data(),
          .c = c.data(),
          .offset = to.offset.as<std::int32_t>()};
}

// For fused(), before there is memory for what the operation makes itself: that is aligned, as all that is allocated.
GroupedProblem planned(GroupedLayout layout, const void* a, const Tensor& b, const Dispatch& to, std::int64_t rows) {
  const bool nt = layout == GroupedLayout::nt;
  return {.layout = layout,
          .experts = to.offset.elements() - 1,
          .rows = rows,
          .n = b.dim(nt ? 1 : 2),
          .k = b.dim(nt ? 2 : 1),
          .a = a,
          .b = b.data()};
}

bool fused(const CudaDevice& device, const GroupedProblem& in, const GroupedProblem& out, DType dtype) {
  const bool cutlass =
      have_cutlass && device.architecture() == 90 && hopper_takes(in, dtype, dtype) && hopper_takes(out, dtype, dtype);
  return !cutlass && in.experts > 0 && mma_takes(in, dtype) && mma_takes(out, dtype);
}

void check_ffn(const Tensor& x, const Tensor& h, const Tensor& w_in, const Tensor& w_out, const Dispatch& to,
               Activation kind) {
  const std::int64_t experts = to.offset.elements() - 1, d = x.dim(1), n = h.dim(1), rows = h.dim(0);
  const std::int64_t f = kind == Activation::swiglu ? n / 2 : n;
  require(w_in.shape() == Shape({experts, n, d}) && w_out.shape() == Shape({experts, d, f}) &&
              w_in.dtype() == x.dtype() && w_out.dtype() == x.dtype() && h.dtype() == x.dtype() &&
              to.source.elements() >= rows && to.row.dim(0) == x.dim(0) && to.weight.shape() == to.row.shape(),
          "expert_ffn: x {}, h {}, w_in {}, w_out {}, row {} and source {} do not fit", x.shape().to_string(),
          h.shape().to_string(), w_in.shape().to_string(), w_out.shape().to_string(), to.row.shape().to_string(),
          to.source.shape().to_string());
}

Gather rows_of_tokens(const Dispatch& to) {
  return {to.source.as<std::int32_t>(), static_cast<std::int32_t>(to.row.dim(1))};
}

}  // namespace

void CudaStream::expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                            const Dispatch& to, Activation kind) {
  check_ffn(x, h, w_in, w_out, to, kind);
  const std::int64_t rows = h.dim(0), f = w_out.dim(2);
  const GroupedProblem in = product(GroupedLayout::nt, x, w_in, h, to, rows);
  if (!fused(device_, in, planned(GroupedLayout::nt, nullptr, w_out, to, rows), x.dtype())) {
    return Stream::expert_ffn(y, h, x, w_in, w_out, to, kind);
  }
  const Tensor a = device_.empty(x.dtype(), {rows, f}), out = device_.empty(x.dtype(), {rows, x.dim(1)});
  grouped_mma_activate(in, rows_of_tokens(to), a.data(), kind, stream_);
  grouped_mma(product(GroupedLayout::nt, a, w_out, out, to, rows), x.dtype(), {}, {}, stream_);
  combine(y, out, to.row, to.weight, false);
}

void CudaStream::expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                                     const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                                     const Tensor& w_out, const Dispatch& to, Activation kind, float beta) {
  check_ffn(x, h, w_in, w_out, to, kind);
  const std::int64_t rows = h.dim(0), d = x.dim(1), f = w_out.dim(2);
  if (!fused(device_, planned(GroupedLayout::nn, nullptr, w_in, to, rows),
             planned(GroupedLayout::nn, dy.data(), w_out, to, rows), x.dtype())) {
    return Stream::expert_ffn_backward(dx, dweight, dw_in, dw_out, dy, x, h, w_in, w_out, to, kind, beta);
  }
  const Tensor dh = device_.empty(x.dtype(), h.shape()), dx_rows = device_.empty(x.dtype(), {rows, d});
  const GroupedProblem in_dx = product(GroupedLayout::nn, dh, w_in, dx_rows, to, rows);
  GroupedProblem out_dx = product(GroupedLayout::nn, dy, w_out, dx_rows, to, rows);
  out_dx.c = nullptr;
  const Gather gather = rows_of_tokens(to);
  {
    const std::int64_t parts = mma_column_tiles(f);
    const Tensor a = device_.empty(x.dtype(), {rows, f}), partial = device_.empty(DType::f32, {rows, parts});
    grouped_mma_weigh(out_dx, gather,
                      {.h = h.data(),
                       .dh = dh.data(),
                       .act = a.data(),
                       .weight = to.weight.as<float>(),
                       .source = to.source.as<std::int32_t>(),
                       .partial = partial.as<float>()},
                      kind, stream_);
    sum_partials(dweight.as<float>(), dweight.elements(), partial.as<float>(), to.source.as<std::int32_t>(), rows,
                 parts, stream_);
    grouped_mma(product(GroupedLayout::tn, dy, a, dw_out, to, rows, beta), DType::f32, gather, {}, stream_);
  }
  grouped_mma(product(GroupedLayout::tn, dh, x, dw_in, to, rows, beta), DType::f32, {}, gather, stream_);
  grouped_mma(in_dx, x.dtype(), {}, {}, stream_);
  pack_backward(dx, dx_rows, to.row, false);
}

}  // namespace orthant::cuda
