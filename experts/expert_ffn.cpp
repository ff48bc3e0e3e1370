// The routed experts of one rank, of the operations that every device has. Nothing but x and h is kept for the backward
// pass: packed rows and activations are made again, and the experts' outputs are not needed (Guo et al., "SonicMoE").
#include <orthant/device.h>
#include <orthant/ops.h>

namespace orthant {

void Stream::expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                        const Dispatch& dispatch, Activation kind) {
  const std::int64_t rows = h.dim(0), d = x.dim(1), f = w_out.dim(2);
  Tensor packed = device().empty(x.dtype(), {rows, d});
  pack(packed, x, dispatch.row, dispatch.source);
  grouped_gemm(h, packed, w_in, dispatch.offset, {.transpose_b = true});
  const Tensor a = device().empty(x.dtype(), {rows, f});
  activation(a, h, kind);
  grouped_gemm(packed, a, w_out, dispatch.offset, {.transpose_b = true});  // the outputs where the inputs were
  combine(y, packed, dispatch.row, dispatch.weight, false);
}

void Stream::expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                                 const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                                 const Tensor& w_out, const Dispatch& dispatch, Activation kind, float beta) {
  const std::int64_t rows = h.dim(0), d = x.dim(1), f = w_out.dim(2);
  const DType dtype = x.dtype();
  const Tensor packed = device().empty(dtype, {rows, d});  // of dy, then of x, then of dx
  const Tensor dh = device().empty(dtype, h.shape());
  pack(packed, dy, dispatch.row, dispatch.source);
  {
    const Tensor da = device().empty(dtype, {rows, f}), a = device().empty(dtype, {rows, f});
    grouped_gemm(da, packed, w_out, dispatch.offset, {});
    weighted_activation_backward(dh, a, dweight, da, h, dispatch.weight, dispatch.source, kind);
    grouped_gemm_tn(dw_out, packed, a, dispatch.offset, beta);
  }
  pack(packed, x, dispatch.row, dispatch.source);
  grouped_gemm_tn(dw_in, dh, packed, dispatch.offset, beta);
  grouped_gemm(packed, dh, w_in, dispatch.offset, {});
  pack_backward(dx, packed, dispatch.row, false);
}

}  // namespace orthant
