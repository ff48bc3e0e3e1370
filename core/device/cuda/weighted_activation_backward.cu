// The activation's backward pass of packed rows, with the gradient of the weights their outputs are summed with.
#include "core/device/cuda/weighted_activation.h"

#include "core/device/cuda/activation_math.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int weighted_rows_of_block = 8;

template <int width, class T>
__device__ void store_zero(T* to, std::int64_t columns) {
  constexpr float zero[width] = {};
  for (std::int64_t j = lane() * width; j < columns; j += warp_threads * width) {
    store_vector(to + j, zero);
  }
}

// One warp a row. dh, h [rows, n], a, da [rows, f], n = f or, gated, 2 f; weight, dweight: by choice; source null:
// row r is choice r. dweight is 0 where no row stands. Floor of a row: h and da read, dh and a written; of a row that
// holds no choice, only the latter two.
template <class T, class Kind, int width>
__global__ void weighted_rows(T* dh, T* a, float* dweight, const T* da, const T* h, const float* weight,
                              const std::int32_t* source, std::int64_t rows, std::int64_t f) {
  const std::int64_t n = (Kind::gated ? 2 : 1) * f;
  for (std::int64_t row = std::int64_t{blockIdx.x} * weighted_rows_of_block + warp(); row < rows;
       row += std::int64_t{gridDim.x} * weighted_rows_of_block) {
    const std::int64_t choice = source == nullptr ? row : source[row];
    if (choice < 0) {
      store_zero<width>(dh + row * n, n);
      store_zero<width>(a + row * f, f);
      continue;
    }
    const float s = weight[choice];
    float inner = 0.0f;
    for (std::int64_t j = lane() * width; j < f; j += warp_threads * width) {
      float gate[width], up[width], d[width], value[width], dgate[width], dup[width];
      load_gate_and_up<Kind>(gate, up, h + row * n + j, f);
      load_vector(d, da + row * f + j);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const ActivationSlopes slopes = Kind::slopes(gate[i], up[i]);
        inner += d[i] * slopes.value;
        value[i] = s * slopes.value;
        dgate[i] = s * d[i] * slopes.by_gate;
        dup[i] = s * d[i] * slopes.by_up;
      }
      store_vector(a + row * f + j, value);
      store_gate_and_up<Kind>(dh + row * n + j, dgate, dup, f);
    }
    inner = warp_sum(inner);
    if (lane() == 0) {
      dweight[choice] = inner;
    }
  }
}

}  // namespace

void weighted_activation(const CudaStream& stream, const Tensor& dh, const Tensor& a, const Tensor& dweight,
                         const Tensor& da, const Tensor& h, const Tensor& weight, const Tensor& source,
                         Activation kind) {
  const std::int64_t rows = a.dim(0), f = a.dim(1);
  const Grid grid{blocks_for(rows, weighted_rows_of_block, 16 * std::int64_t{stream.cuda().multiprocessors()}),
                  weighted_rows_of_block * warp_threads};
  with_float_type(h.dtype(), [&](auto type) {
    with_activation(kind, [&](auto which) {
      using T = decltype(type);
      using Kind = decltype(which);
      constexpr int width = vector_elements<T>;
      const bool wide = f % width == 0 && all_aligned<width>(dh.as<T>(), a.as<T>(), da.as<T>(), h.as<T>());
      launch(wide ? weighted_rows<T, Kind, width> : weighted_rows<T, Kind, 1>, grid, stream.handle(), dh.as<T>(),
             a.as<T>(), dweight.as<float>(), da.as<T>(), h.as<T>(), weight.as<float>(), source.as<std::int32_t>(), rows,
             f);
    });
  });
}

void CudaStream::weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight,
                                              const Tensor& da, const Tensor& h, const Tensor& weight,
                                              const Tensor& source, Activation kind) {
  check_weighted_activation_backward(dh, a, dweight, da, h, weight, source, kind);
  if (source.defined()) {
    fill(dweight, 0);
  }
  weighted_activation(*this, dh, a, dweight, da, h, weight, source, kind);
}

}  // namespace orthant::cuda
