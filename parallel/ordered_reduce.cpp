// reduce_in_rank_order: elementwise, so any chunking gives the same bits; blocked, so that partial results stay in
// the first-level cache however many sources there are.
#include <orthant/host_channel.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace orthant {
namespace {

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};

struct Bf16 {
  std::uint16_t bits;
};

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Bf16> {
  using type = float;
};

inline float load(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
template <class T>
inline T load(T x) {
  return x;
}
inline void store(Bf16& to, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  to.bits = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}
template <class T>
inline void store(T& to, T value) {
  to = value;
}

constexpr std::int64_t block = 1024;

// acc = ((acc or nothing) op s[0]) op ... s[K - 1], over one block.
template <class Op, int K, bool first, class T, class A>
void pass(A* acc, const T* const* s, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    A value;
    if constexpr (first) {
      value = load(s[0][i]);
    } else {
      value = Op::apply(acc[i], static_cast<A>(load(s[0][i])));
    }
    if constexpr (K > 1) {
      value = Op::apply(value, static_cast<A>(load(s[1][i])));
    }
    if constexpr (K > 2) {
      value = Op::apply(value, static_cast<A>(load(s[2][i])));
    }
    if constexpr (K > 3) {
      value = Op::apply(value, static_cast<A>(load(s[3][i])));
    }
    acc[i] = value;
  }
}

template <class Op, bool first, class T, class A>
void pass_of(int k, A* acc, const T* const* s, std::int64_t n) {
  switch (k) {
    case 1: return pass<Op, 1, first>(acc, s, n);
    case 2: return pass<Op, 2, first>(acc, s, n);
    case 3: return pass<Op, 3, first>(acc, s, n);
    default: return pass<Op, 4, first>(acc, s, n);
  }
}

template <class T, class Op>
void reduce_as(void* out, std::span<const void* const> sources, std::int64_t n) {
  using A = typename Accumulator<T>::type;
  alignas(64) A acc[block];
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const std::int64_t count = std::min(block, n - begin);
    for (std::size_t s = 0; s < sources.size(); s += 4) {
      const T* at[4] = {};
      const int k = static_cast<int>(std::min<std::size_t>(4, sources.size() - s));
      for (int j = 0; j < k; ++j) {
        at[j] = static_cast<const T*>(sources[s + static_cast<std::size_t>(j)]) + begin;
      }
      if (s == 0) {
        pass_of<Op, true>(k, acc, at, count);
      } else {
        pass_of<Op, false>(k, acc, at, count);
      }
    }
    // Only now: `out` may be one of the sources.
    T* to = static_cast<T*>(out) + begin;
    if constexpr (std::is_same_v<T, A>) {
      std::memcpy(to, acc, static_cast<std::size_t>(count) * sizeof(T));
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) {
        store(to[i], acc[i]);
      }
    }
  }
}

template <class T>
void reduce_op(void* out, std::span<const void* const> sources, std::int64_t n, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return reduce_as<T, Sum>(out, sources, n);
    case ReduceOp::max: return reduce_as<T, Max>(out, sources, n);
    case ReduceOp::min: return reduce_as<T, Min>(out, sources, n);
  }
}

}  // namespace

void reduce_in_rank_order(void* out, std::span<const void* const> sources, std::int64_t n, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32: return reduce_op<float>(out, sources, n, op);
    case DType::bf16: return reduce_op<Bf16>(out, sources, n, op);
    case DType::f64: return reduce_op<double>(out, sources, n, op);
    case DType::i32: return reduce_op<std::int32_t>(out, sources, n, op);
    case DType::i64: return reduce_op<std::int64_t>(out, sources, n, op);
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2: break;
  }
  fail("cannot reduce elements of type {}: use f32, bf16, f64, i32 or i64", name_of(dtype));
}

}  // namespace orthant
