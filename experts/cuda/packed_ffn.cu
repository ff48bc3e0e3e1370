#include "experts/cuda/packed_ffn.h"

#include <algorithm>
#include <array>

#include "core/device/cuda/weighted_activation.h"
#include "experts/cuda/cutlass_products.h"
#include "experts/cuda/expert_kernels.h"
#include "experts/cuda/ffn_products.h"

namespace orthant::cuda {

bool packed_ffn_fits(const CudaStream& stream, const Tensor& x, const Tensor& h, const Tensor& w_in,
                     const Tensor& w_out, const Tensor& dw_in, const Tensor& dw_out, const Dispatch& to) {
  const ExpertMeans means = expert_means(stream.cuda());
  const std::int64_t rows = h.dim(0);
  const auto by_cutlass = [&](const GroupedProblem& p) {
    const DType out = p.layout == GroupedLayout::tn ? DType::f32 : x.dtype();
    return p.experts > 0 && choose_products(means, p, x.dtype(), out) == ExpertProducts::cutlass;
  };
  if (!dw_in.defined()) {
    GroupedProblem in = planned_product(GroupedLayout::nt, nullptr, w_in, to, rows);
    in.c = h.data();
    return by_cutlass(in) && by_cutlass(planned_product(GroupedLayout::nt, nullptr, w_out, to, rows));
  }
  return by_cutlass(planned_product(GroupedLayout::nn, nullptr, w_in, to, rows)) &&
         by_cutlass(planned_product(GroupedLayout::nn, nullptr, w_out, to, rows)) &&
         by_cutlass(planned_gradient(dw_in, to, rows)) && by_cutlass(planned_gradient(dw_out, to, rows));
}

void packed_ffn(CudaStream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in,
                const Tensor& w_out, const Dispatch& to, Activation kind) {
  Device& device = stream.device();
  const std::int64_t rows = h.dim(0);
  const Tensor packed = device.empty(x.dtype(), {rows, x.dim(1)}), a = device.empty(x.dtype(), {rows, w_out.dim(2)});
  const std::array products = {ffn_product(GroupedLayout::nt, packed, w_in, h, to, rows),
                               ffn_product(GroupedLayout::nt, a, w_out, packed, to, rows)};
  const DescribedProducts described(stream, products);
  stream.pack(packed, x, to.row, to.source);
  multiply_by_cutlass(stream, products[0], described[0]);
  stream.activation(a, h, kind);
  multiply_by_cutlass(stream, products[1], described[1]);  // the outputs where the inputs were
  stream.combine(y, packed, to.row, to.weight, false);
}

void packed_ffn_backward(CudaStream& stream, const Tensor& dx, const Tensor& dweight, const Tensor& dw_in,
                         const Tensor& dw_out, const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                         const Tensor& w_out, const Dispatch& to, Activation kind, float beta) {
  require(
      dw_in.shape() == w_in.shape() && dw_out.shape() == w_out.shape() && dw_in.dtype() == DType::f32 &&
          dw_out.dtype() == DType::f32 && dweight.shape() == to.weight.shape() && dy.shape() == x.shape() &&
          dy.dtype() == x.dtype(),
      "expert_ffn_backward: dw_in {}, dw_out {}, dweight {} and dy {} do not fit w_in {}, w_out {}, weight {} and x {}",
      dw_in.shape(), dw_out.shape(), dweight.shape(), dy.shape(), w_in.shape(), w_out.shape(), to.weight.shape(),
      x.shape());
  Device& device = stream.device();
  const DType dtype = x.dtype();
  const std::int64_t rows = h.dim(0), f = w_out.dim(2);
  const Tensor packed = device.empty(dtype, {rows, x.dim(1)});  // of dy, then of x, then of dx
  const Tensor dh = device.empty(dtype, h.shape());
  Tensor da = device.empty(dtype, {rows, f}), a = device.empty(dtype, {rows, f});
  enum { of_da, of_dw_out, of_dw_in, of_dx };
  const std::array products = {ffn_product(GroupedLayout::nn, packed, w_out, da, to, rows),
                               ffn_product(GroupedLayout::tn, packed, a, dw_out, to, rows, beta),
                               ffn_product(GroupedLayout::tn, dh, packed, dw_in, to, rows, beta),
                               ffn_product(GroupedLayout::nn, dh, w_in, packed, to, rows)};
  const DescribedProducts described(stream, products, dweight);
  const auto multiply = [&](int which) {
    const auto i = static_cast<std::size_t>(which);
    multiply_by_cutlass(stream, products.at(i), described[i]);
  };
  stream.pack(packed, dy, to.row, to.source);
  multiply(of_da);
  weighted_activation(stream, dh, a, dweight, da, h, to.weight, to.source, kind);
  multiply(of_dw_out);
  da = {};
  a = {};
  stream.pack(packed, x, to.row, to.source);
  multiply(of_dw_in);
  multiply(of_dx);
  stream.pack_backward(dx, packed, to.row, false);
}

}  // namespace orthant::cuda
