// FFN activations: relu, gelu (Hendrycks and Gimpel, the tanh form), swiglu (Shazeer, "GLU variants improve
// Transformer") and its clamped form (gpt-oss), geglu (likewise), tanh.
#include <algorithm>

#include "core/device/cpu/bf16_rows.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/cpu/vector_math.h"
#include "core/device/operation_checks.h"

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

struct Tanh {
  static float value(float x) { return fast_tanh(x); }
  static float slope(float x) {
    const float y = fast_tanh(x);
    return 1.0f - y * y;
  }
};

template <class Kind, class T>
void activate(int threads, T* a, const T* h, std::int64_t n) {
  parallel_for(threads, n, grain, [&](std::int64_t begin, std::int64_t end) {
    in_pieces(std::array{a + begin}, end - begin, [&](const auto& out, std::int64_t at, std::int64_t count) {
      float* const value = out[0];
      const T* const x = h + begin + at;
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        value[i] = Kind::value(to_float(x[i]));
      }
    });
  });
}

template <class Kind, class T>
void apply_backward(int threads, T* dh, const T* da, const T* h, std::int64_t n) {
  parallel_for(threads, n, grain, [&](std::int64_t begin, std::int64_t end) {
    in_pieces(std::array{dh + begin}, end - begin, [&](const auto& out, std::int64_t at, std::int64_t count) {
      float* const dx = out[0];
      const T *const d = da + begin + at, *const x = h + begin + at;
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        dx[i] = to_float(d[i]) * Kind::slope(to_float(x[i]));
      }
    });
  });
}

// Of one element, each gated by another.
struct Slopes {
  float value, by_gate, by_up;
};

struct Swiglu {
  static float value(float g, float u) { return g * fast_sigmoid(g) * u; }
  static Slopes slopes(float g, float u) {
    const float s = fast_sigmoid(g);
    return {g * s * u, u * s * (1.0f + g * (1.0f - s)), g * s};
  }
};

// Keeps NaN.
struct ClampedSwiglu {
  static constexpr float gain = 1.702f, limit = 7.0f;
  static float cut_gate(float g) { return g > limit ? limit : g; }
  static float cut_up(float u) { return u > limit ? limit : u < -limit ? -limit : u; }
  static float value(float gate, float up) {
    const float g = cut_gate(gate);
    return (cut_up(up) + 1.0f) * (g * fast_sigmoid(gain * g));
  }
  static Slopes slopes(float gate, float up) {
    const float g = cut_gate(gate), u = cut_up(up), s = fast_sigmoid(gain * g);
    return {(u + 1.0f) * (g * s), gate > limit ? 0.0f : (u + 1.0f) * s * (1.0f + gain * g * (1.0f - s)),
            up > limit || up < -limit ? 0.0f : g * s};
  }
};

struct Geglu {
  static float value(float g, float u) { return Gelu::value(g) * u; }
  static Slopes slopes(float g, float u) {
    const float a = Gelu::value(g);
    return {a * u, u * Gelu::slope(g), a};
  }
};

// h [rows, 2f] = (gate | up), a [rows, f].
template <class Kind, class T>
void activate_gated(int threads, T* a, const T* h, std::int64_t rows, std::int64_t f) {
  parallel_for(threads, rows, grain / (f + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      in_pieces(std::array{a + t * f}, f, [&](const auto& out, std::int64_t at, std::int64_t count) {
        const T *const gate = h + t * 2 * f + at, *const up = gate + f;
        float* const value = out[0];
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) {
          value[j] = Kind::value(to_float(gate[j]), to_float(up[j]));
        }
      });
    }
  });
}

template <class Kind, class T>
void gated_backward(int threads, T* dh, const T* da, const T* h, std::int64_t rows, std::int64_t f) {
  parallel_for(threads, rows, grain / (f + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      T* const row = dh + t * 2 * f;
      in_pieces(std::array{row, row + f}, f, [&](const auto& out, std::int64_t at, std::int64_t count) {
        const T *const gate = h + t * 2 * f + at, *const up = gate + f, *const d = da + t * f + at;
        float *const dgate = out[0], *const dup = out[1];
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) {
          const Slopes s = Kind::slopes(to_float(gate[j]), to_float(up[j]));
          const float dout = to_float(d[j]);
          dgate[j] = dout * s.by_gate;
          dup[j] = dout * s.by_up;
        }
      });
    }
  });
}

// The plain activations as (gate | up) with nothing above: value and slopes of one element.
template <class Kind, class T>
float weighted_row(T* dh, T* a, const T* da, const T* h, std::int64_t f, float s) {
  float sum = 0;
  in_pieces(std::array{a, dh}, f, [&](const auto& out, std::int64_t at, std::int64_t count) {
    const T *const xs = h + at, *const ds = da + at;
    float *const values = out[0], *const dxs = out[1];
    float inner = 0;
#pragma omp simd reduction(+ : inner)
    for (std::int64_t j = 0; j < count; ++j) {
      const float x = to_float(xs[j]), d = to_float(ds[j]), value = Kind::value(x);
      inner += d * value;
      values[j] = s * value;
      dxs[j] = s * d * Kind::slope(x);
    }
    sum += inner;
  });
  return sum;
}

template <class Kind, class T>
float weighted_gated_row(T* dh, T* a, const T* da, const T* h, std::int64_t f, float s) {
  float sum = 0;
  in_pieces(std::array{a, dh, dh + f}, f, [&](const auto& out, std::int64_t at, std::int64_t count) {
    const T *const gate = h + at, *const up = gate + f, *const ds = da + at;
    float *const values = out[0], *const dgate = out[1], *const dup = out[2];
    float inner = 0;
#pragma omp simd reduction(+ : inner)
    for (std::int64_t j = 0; j < count; ++j) {
      const Slopes slopes = Kind::slopes(to_float(gate[j]), to_float(up[j]));
      const float d = to_float(ds[j]);
      inner += d * slopes.value;
      values[j] = s * slopes.value;
      dgate[j] = s * d * slopes.by_gate;
      dup[j] = s * d * slopes.by_up;
    }
    sum += inner;
  });
  return sum;
}

// The inner product <da, act(h)> of one row, and the row's a and dh.
template <class T>
float weighted_row(T* dh, T* a, const T* da, const T* h, std::int64_t f, float s, Activation kind) {
  switch (kind) {
    case Activation::relu: return weighted_row<Relu>(dh, a, da, h, f, s);
    case Activation::gelu: return weighted_row<Gelu>(dh, a, da, h, f, s);
    case Activation::swiglu: return weighted_gated_row<Swiglu>(dh, a, da, h, f, s);
    case Activation::clamped_swiglu: return weighted_gated_row<ClampedSwiglu>(dh, a, da, h, f, s);
    case Activation::geglu: return weighted_gated_row<Geglu>(dh, a, da, h, f, s);
    case Activation::tanh: return weighted_row<Tanh>(dh, a, da, h, f, s);
  }
  return 0;
}

}  // namespace

void CpuStream::activation(const Tensor& a, const Tensor& h, Activation kind) {
  check_activation("activation", a, h, kind);
  with_float_type(h.dtype(), [&](auto type) {
    using T = decltype(type);
    switch (kind) {
      case Activation::relu: return activate<Relu>(threads_, a.as<T>(), h.as<T>(), a.elements());
      case Activation::gelu: return activate<Gelu>(threads_, a.as<T>(), h.as<T>(), a.elements());
      case Activation::swiglu: return activate_gated<Swiglu>(threads_, a.as<T>(), h.as<T>(), a.dim(0), a.dim(1));
      case Activation::clamped_swiglu:
        return activate_gated<ClampedSwiglu>(threads_, a.as<T>(), h.as<T>(), a.dim(0), a.dim(1));
      case Activation::geglu: return activate_gated<Geglu>(threads_, a.as<T>(), h.as<T>(), a.dim(0), a.dim(1));
      case Activation::tanh: return activate<Tanh>(threads_, a.as<T>(), h.as<T>(), a.elements());
    }
  });
}

void CpuStream::activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  check_activation_backward(dh, da, h, kind);
  with_float_type(h.dtype(), [&](auto type) {
    using T = decltype(type);
    switch (kind) {
      case Activation::relu: return apply_backward<Relu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.elements());
      case Activation::gelu: return apply_backward<Gelu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.elements());
      case Activation::swiglu:
        return gated_backward<Swiglu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.dim(0), da.dim(1));
      case Activation::clamped_swiglu:
        return gated_backward<ClampedSwiglu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.dim(0), da.dim(1));
      case Activation::geglu:
        return gated_backward<Geglu>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.dim(0), da.dim(1));
      case Activation::tanh: return apply_backward<Tanh>(threads_, dh.as<T>(), da.as<T>(), h.as<T>(), da.elements());
    }
  });
}

void CpuStream::weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight, const Tensor& da,
                                             const Tensor& h, const Tensor& weight, const Tensor& source,
                                             Activation kind) {
  check_weighted_activation_backward(dh, a, dweight, da, h, weight, source, kind);
  const std::int64_t f = a.dim(1), n = h.dim(1);
  const std::int32_t* const choice_of = source.as<std::int32_t>();  // null: row r is choice r
  std::fill_n(dweight.as<float>(), dweight.elements(), 0.0f);
  with_float_type(h.dtype(), [&](auto type) {
    using T = decltype(type);
    parallel_for(threads_, a.dim(0), grain / (f + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        T *const dh_row = dh.as<T>() + r * n, *const a_row = a.as<T>() + r * f;
        const std::int64_t choice = choice_of == nullptr ? r : choice_of[r];
        if (choice < 0) {
          std::fill_n(dh_row, n, T{});
          std::fill_n(a_row, f, T{});
          continue;
        }
        dweight.as<float>()[choice] =
            weighted_row(dh_row, a_row, da.as<T>() + r * f, h.as<T>() + r * n, f, weight.as<float>()[choice], kind);
      }
    });
  });
}

}  // namespace orthant
