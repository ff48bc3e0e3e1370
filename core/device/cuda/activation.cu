// FFN activations, forward and backward.
#include "core/device/cuda/activation_math.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

// a [rows, f], h [rows, f] or, gated, [rows, 2 f]. Floor: the bytes of a and h.
template <class T, class Kind>
struct ForwardBody {
  T* a;
  const T* h;
  std::int64_t f;
  template <int n>
  struct Loaded {
    float gate[n], up[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    load_gate_and_up<Kind>(l.gate, l.up, h + (Kind::gated ? 2 : 1) * row * f + column, f);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    float out[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      out[j] = Kind::value(l.gate[j], l.up[j]);
    }
    store_vector(a + row * f + column, out);
  }
};

// Floor: the bytes of dh, da and h.
template <class T, class Kind>
struct BackwardBody {
  T* dh;
  const T *da, *h;
  std::int64_t f;
  template <int n>
  struct Loaded {
    float gate[n], up[n], da[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    load_gate_and_up<Kind>(l.gate, l.up, h + (Kind::gated ? 2 : 1) * row * f + column, f);
    load_vector(l.da, da + row * f + column);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    float dgate[n], dup[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const ActivationSlopes s = Kind::slopes(l.gate[j], l.up[j]);
      dgate[j] = l.da[j] * s.by_gate;
      dup[j] = l.da[j] * s.by_up;
    }
    store_gate_and_up<Kind>(dh + (Kind::gated ? 2 : 1) * row * f + column, dgate, dup, f);
  }
};

// One row alone may have any length, but not where its second half is to begin well too.
template <int width, class Kind>
bool halves_aligned(Kind, std::int64_t f) {
  return !Kind::gated || f % width == 0;
}

// fn(T, kind, rows, f): an activation that is not gated sees one long row.
template <class F>
void with_kernel(const Tensor& a, Activation kind, F&& fn) {
  with_float_type(a.dtype(), [&](auto type) {
    with_activation(kind, [&](auto which) {
      constexpr bool gated = decltype(which)::gated;
      fn(type, which, gated ? a.dim(0) : 1, gated ? a.dim(1) : a.elements());
    });
  });
}

}  // namespace

void CudaStream::activation(const Tensor& a, const Tensor& h, Activation kind) {
  check_activation("activation", a, h, kind);
  with_kernel(a, kind, [&](auto type, auto which, std::int64_t rows, std::int64_t f) {
    using T = decltype(type);
    constexpr int width = vector_elements<T>;
    const ForwardBody<T, decltype(which)> body{a.as<T>(), h.as<T>(), f};
    for_each_chunk<width, 2>(*this, body, rows, f,
                             all_aligned<width>(body.a, body.h) && halves_aligned<width>(which, f));
  });
}

void CudaStream::activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  check_activation_backward(dh, da, h, kind);
  with_kernel(da, kind, [&](auto type, auto which, std::int64_t rows, std::int64_t f) {
    using T = decltype(type);
    constexpr int width = vector_elements<T>;
    const BackwardBody<T, decltype(which)> body{dh.as<T>(), da.as<T>(), h.as<T>(), f};
    for_each_chunk<width, 1>(*this, body, rows, f,
                             all_aligned<width>(body.dh, body.da, body.h) && halves_aligned<width>(which, f));
  });
}

}  // namespace orthant::cuda
