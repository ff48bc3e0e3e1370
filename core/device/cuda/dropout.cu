// What random numbers decide: initial weights, dropout, jitter. Numbers are keyed by *global* indices, so the layout of
// ranks changes nothing, and masks are the CPU's bit for bit.
#include <orthant/random.h>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

struct NormalBody {
  float* w;
  RandomKey key;
  float std;
  SliceMap at;
  std::int64_t columns;
  template <int n>
  struct Loaded {};
  __device__ void load(Loaded<1>&, std::int64_t, std::int64_t) const {}
  __device__ void store(const Loaded<1>&, std::int64_t row, std::int64_t column) const {
    const std::int64_t index = (at.row_begin + row) * at.global_columns + at.column_begin + column;
    w[row * columns + column] = std * normal(key, static_cast<std::uint64_t>(index));
  }
};

struct Keep {
  RandomKey key;
  float p, kept;
  __device__ float operator()(std::uint64_t index) const { return uniform(key, index) < p ? 0.0f : kept; }
};

struct Stretch {
  RandomKey key;
  float e;
  __device__ float operator()(std::uint64_t index) const { return 1.0f - e + 2.0f * e * uniform(key, index); }
};

// y[t, j] = x[t, j] * factor(token[t] * global_columns + column_begin + j). Floor: x and y once each; but ten rounds of
// Philox an element, about 80 instructions, take longer than its bytes.
template <class T, class Factor>
struct FactorBody {
  T* y;
  const T* x;
  const std::int64_t* token;
  std::int64_t columns, global_columns, column_begin;
  Factor factor;
  template <int n>
  struct Loaded {
    float x[n];
    std::int64_t token;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    load_vector(l.x, x + row * columns + column);
    l.token = token[row];
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    const auto base = static_cast<std::uint64_t>(l.token * global_columns + column_begin + column);
    float out[n];
#pragma unroll
    for (int j = 0; j < n; ++j) {
      out[j] = l.x[j] * factor(base + static_cast<std::uint64_t>(j));
    }
    store_vector(y + row * columns + column, out);
  }
};

template <class Factor>
void scale_by(CudaStream& stream, const Tensor& y, const Tensor& x, const Tensor& token, std::int64_t global_columns,
              std::int64_t column_begin, const Factor& factor) {
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int width = vector_elements<T>;
    const FactorBody<T, Factor> body{y.as<T>(),    x.as<T>(), token.as<std::int64_t>(), x.dim(1), global_columns,
                                     column_begin, factor};
    for_each_chunk<width, 1>(stream, body, x.dim(0), x.dim(1), all_aligned<width>(body.y, body.x));
  });
}

}  // namespace

void CudaStream::init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) {
  check_init_normal(w);
  for_each_chunk<1, 1>(*this, NormalBody{w.as<float>(), key, std, at, w.dim(1)}, w.dim(0), w.dim(1), true);
}

void CudaStream::dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
                         const SliceMap& at) {
  check_dropout(y, x, token, p);
  scale_by(*this, y, x, token, at.global_columns, at.column_begin, Keep{key, p, 1.0f / (1.0f - p)});
}

void CudaStream::jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) {
  check_random_scale("jitter", y, x, token);
  scale_by(*this, y, x, token, x.dim(1), 0, Stretch{key, e});
}

}  // namespace orthant::cuda
