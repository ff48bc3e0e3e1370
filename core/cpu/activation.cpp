// FFN activations: relu, gelu (Hendrycks and Gimpel, the tanh form), swiglu (Shazeer, "GLU variants improve
// Transformer").
#include "core/cpu/bf16.h"
#include "core/cpu/check.h"
#include "core/cpu/cpu_stream.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"

namespace orthant {
namespace {

constexpr std::int64_t grain = 1 << 13;

// gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float gelu_scale = 1.59576912160573071f;  // 2 sqrt(2/pi)
constexpr float gelu_cubic = 0.044715f;

struct Relu {
  static float value(float x) { return x < 0.0f ? 0.0f : x; }  // keeps NaN
  static float slope(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};

struct Gelu {
  static float gate(float x) { return fast_sigmoid(gelu_scale * (x + gelu_cubic * x * x * x)); }
  static float value(float x) { return x * gate(x); }
  static float slope(float x) {
    const float s = gate(x);
    return s + x * s * (1.0f - s) * gelu_scale * (1.0f + 3.0f * gelu_cubic * x * x);
  }
};

template <class Kind, class T>
void apply(int threads, T* a, const T* h, std::int64_t n) {
  parallel_for(threads, n, grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      a[i] = from_float<T>(Kind::value(to_float(h[i])));
    }
  });
}

template <class Kind, class T>
void apply_backward(int threads, T* dh, const T* da, const T* h, std::int64_t n) {
  parallel_for(threads, n, grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      dh[i] = from_float<T>(to_float(da[i]) * Kind::slope(to_float(h[i])));
    }
  });
}

// h [rows, 2f] = (gate | up), a [rows, f].
template <class T>
void swiglu(int threads, T* a, const T* h, std::int64_t rows, std::int64_t f) {
  parallel_for(threads, rows, grain / (f + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T *gate = h + t * 2 * f, *up = gate + f;
      T* out = a + t * f;
#pragma omp simd
      for (std::int64_t j = 0; j < f; ++j) {
        const float g = to_float(gate[j]);
        out[j] = from_float<T>(g * fast_sigmoid(g) * to_float(up[j]));
      }
    }
  });
}

template <class T>
void swiglu_backward(int threads, T* dh, const T* da, const T* h, std::int64_t rows, std::int64_t f) {
  parallel_for(threads, rows, grain / (f + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const T *gate = h + t * 2 * f, *up = gate + f, *d = da + t * f;
      T *dgate = dh + t * 2 * f, *dup = dgate + f;
#pragma omp simd
      for (std::int64_t j = 0; j < f; ++j) {
        const float g = to_float(gate[j]), s = fast_sigmoid(g), dout = to_float(d[j]);
        dgate[j] = from_float<T>(dout * to_float(up[j]) * s * (1.0f + g * (1.0f - s)));
        dup[j] = from_float<T>(dout * g * s);
      }
    }
  });
}

// Checks a [T, f] and h [T, n].
void check(const char* operation, const Tensor& a, const Tensor& h, Activation kind) {
  require_float(operation, "h", h);
  require_dtype(operation, "a", a, {h.dtype()});
  require_rank(operation, "a", a, 2);
  require_shape(operation, "h", h, {a.dim(0), kind == Activation::swiglu ? 2 * a.dim(1) : a.dim(1)});
}

}  // namespace

void CpuStream::activation(const Tensor& a, const Tensor& h, Activation kind) {
  check("activation", a, h, kind);
  with_float_type(h.dtype(), [&](auto type) {
    using T = decltype(type);
    switch (kind) {
      case Activation::relu: return apply<Relu>(threads_, a.as<T>(), h.as<T>(), a.elements());
      case Activation::gelu: return apply<Gelu>(threads_, a.as<T>(), h.as<T>(), a.elements());
      case Activation::swiglu: return swiglu(threads_, a.as<T>(), h.as<T>(), a.dim(0), a.dim(1));
    }
  });
}

void CpuStream::activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  check("activation_backward", da, h, kind);
  require_tensor("activation_backward", "dh", dh, h.dtype(), h.shape());
  with_float_type(h.dtype(), [&](auto type) {
    using T = decltype(type);
    switch (kind) {
      case Activation::relu: return apply_backward<Relu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.elements());
      case Activation::gelu: return apply_backward<Gelu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.elements());
      case Activation::swiglu:
        return swiglu_backward(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.dim(0), da.dim(1));
    }
  });
}

}  // namespace orthant
