// FFN activations and their derivatives, one element at a time: relu, gelu (Hendrycks and Gimpel, the tanh form),
// swiglu and geglu (Shazeer, "GLU variants improve Transformer"), tanh.
#pragma once

#include <orthant/operation_kinds.h>

#include "core/device/cuda/device_math.h"

namespace orthant::cuda {

struct ActivationSlopes {
  float value, by_gate, by_up;
};

// e^x overflows to infinity for far x: the quotient is then 0, as it should be.
__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Each has value(gate, up) and slopes(gate, up); `up` counts where it is gated, h being (gate | up) there.
struct Relu {
  static constexpr bool gated = false;
  static __device__ float value(float x, float) { return x < 0.0f ? 0.0f : x; }  // keeps NaN
  static __device__ ActivationSlopes slopes(float x, float) { return {value(x, 0), x <= 0.0f ? 0.0f : 1.0f, 0.0f}; }
};

// gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
struct Gelu {
  static constexpr bool gated = false;
  static constexpr float scale = 1.59576912160573071f;  // 2 sqrt(2/pi)
  static constexpr float cubic = 0.044715f;
  static __device__ float gate(float x) { return sigmoid(scale * (x + cubic * x * x * x)); }
  static __device__ float value(float x, float) { return x * gate(x); }
  static __device__ ActivationSlopes slopes(float x, float) {
    const float s = gate(x);
    return {x * s, s + x * s * (1.0f - s) * scale * (1.0f + 3.0f * cubic * x * x), 0.0f};
  }
};

struct Swiglu {
  static constexpr bool gated = true;
  static __device__ float value(float g, float u) { return g * sigmoid(g) * u; }
  static __device__ ActivationSlopes slopes(float g, float u) {
    const float s = sigmoid(g);
    return {g * s * u, u * s * (1.0f + g * (1.0f - s)), g * s};
  }
};

// (u + 1) g sigmoid(1.702 g) of g = min(gate, 7) and u = up cut off at -7 and 7 (gpt-oss). Keeps NaN.
struct ClampedSwiglu {
  static constexpr bool gated = true;
  static constexpr float gain = 1.702f, limit = 7.0f;
  static __device__ float cut_gate(float g) { return g > limit ? limit : g; }
  static __device__ float cut_up(float u) { return u > limit ? limit : u < -limit ? -limit : u; }
  static __device__ float value(float gate, float up) {
    const float g = cut_gate(gate);
    return (cut_up(up) + 1.0f) * (g * sigmoid(gain * g));
  }
  static __device__ ActivationSlopes slopes(float gate, float up) {
    const float g = cut_gate(gate), u = cut_up(up), s = sigmoid(gain * g);
    return {(u + 1.0f) * (g * s), gate > limit ? 0.0f : (u + 1.0f) * s * (1.0f + gain * g * (1.0f - s)),
            up > limit || up < -limit ? 0.0f : g * s};
  }
};

struct Geglu {
  static constexpr bool gated = true;
  static __device__ float value(float g, float u) { return Gelu::value(g, 0) * u; }
  static __device__ ActivationSlopes slopes(float g, float u) {
    const ActivationSlopes of_gate = Gelu::slopes(g, 0);
    return {of_gate.value * u, u * of_gate.by_gate, of_gate.value};
  }
};

struct Tanh {
  static constexpr bool gated = false;
  static __device__ float value(float x, float) { return tanhf(x); }
  static __device__ ActivationSlopes slopes(float x, float) {
    const float y = tanhf(x);
    return {y, 1.0f - y * y, 0.0f};
  }
};

// n elements from h on; gated: and those from h + f on, else `up` is 0.
template <class Kind, int n, class T>
__device__ inline void load_gate_and_up(float (&gate)[n], float (&up)[n], const T* h, std::int64_t f) {
  load_vector(gate, h);
  if constexpr (Kind::gated) {
    load_vector(up, h + f);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      up[i] = 0.0f;
    }
  }
}
// The same way back; not gated: without `up`.
template <class Kind, int n, class T>
__device__ inline void store_gate_and_up(T* h, const float (&gate)[n], const float (&up)[n], std::int64_t f) {
  store_vector(h, gate);
  if constexpr (Kind::gated) {
    store_vector(h + f, up);
  }
}

// Calls fn with a value of the activation's struct.
template <class F>
void with_activation(Activation kind, F&& fn) {
  switch (kind) {
    case Activation::relu: return fn(Relu{});
    case Activation::gelu: return fn(Gelu{});
    case Activation::swiglu: return fn(Swiglu{});
    case Activation::clamped_swiglu: return fn(ClampedSwiglu{});
    case Activation::geglu: return fn(Geglu{});
    case Activation::tanh: return fn(Tanh{});
  }
}

}  // namespace orthant::cuda
