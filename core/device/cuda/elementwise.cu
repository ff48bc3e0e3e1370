// add, multiply and scale.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

// y += x, or y *= x. Floor: twice y and once x.
enum class Combine { sum, product };
template <Combine how, class Y, class X>
struct CombineBody {
  Y* y;
  const X* x;
  template <int n>
  struct Loaded {
    float y[n], x[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    load_vector(l.y, y + i);
    load_vector(l.x, x + i);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    float result[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      result[j] = how == Combine::sum ? l.y[j] + l.x[j] : l.y[j] * l.x[j];
    }
    store_vector(y + i, result);
  }
};

// Counters: few, so one at a time.
struct CountBody {
  std::int64_t* y;
  const std::int32_t* x;
  template <int n>
  struct Loaded {
    std::int64_t sum;
  };
  __device__ void load(Loaded<1>& l, std::int64_t, std::int64_t i) const { l.sum = y[i] + x[i]; }
  __device__ void store(const Loaded<1>& l, std::int64_t, std::int64_t i) const { y[i] = l.sum; }
};

// Floor: twice y.
template <class Y>
struct ScaleBody {
  Y* y;
  float a;
  template <int n>
  struct Loaded {
    float y[n];
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    load_vector(l.y, y + i);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    float product[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      product[j] = a * l.y[j];
    }
    store_vector(y + i, product);
  }
};

template <Combine how>
void combine_into(CudaStream& stream, const Tensor& y, const Tensor& x) {
  with_float_type(y.dtype(), [&](auto to_type) {
    with_float_type(x.dtype(), [&](auto from_type) {
      const CombineBody<how, decltype(to_type), decltype(from_type)> body{y.as<decltype(to_type)>(),
                                                                          x.as<decltype(from_type)>()};
      for_each_chunk<8, 2>(stream, body, 1, x.elements(), all_aligned<8>(body.y, body.x));
    });
  });
}

}  // namespace

void CudaStream::add(const Tensor& y, const Tensor& x) {
  check_add(y, x);
  if (y.dtype() == DType::i64) {
    for_each_chunk<1, 1>(*this, CountBody{y.as<std::int64_t>(), x.as<std::int32_t>()}, 1, x.elements(), true);
    return;
  }
  combine_into<Combine::sum>(*this, y, x);
}

void CudaStream::multiply(const Tensor& y, const Tensor& x) {
  check_multiply(y, x);
  combine_into<Combine::product>(*this, y, x);
}

void CudaStream::scale(const Tensor& y, float a) {
  require_float("scale", "y", y);
  with_float_type(y.dtype(), [&](auto type) {
    const ScaleBody<decltype(type)> body{y.as<decltype(type)>(), a};
    for_each_chunk<8, 2>(*this, body, 1, y.elements(), all_aligned<8>(body.y));
  });
}

}  // namespace orthant::cuda
