// Copies and conversions on the device. upload and download: cuda_stream.cu.
#include <bit>
#include <cstring>

#include "core/base/storage_types.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

template <class T>
inline constexpr bool stored = !std::is_floating_point_v<T> && !std::is_same_v<T, bf16>;

template <class To, class From>
__device__ To converted(From x) {
  if constexpr (stored<From>) {
    return converted<To>(widened(x));
  } else if constexpr (stored<To>) {
    return Narrow<To>::of(to_float(x));
  } else if constexpr (std::is_same_v<To, bf16>) {
    return from_float<bf16>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<From, bf16>) {
    return static_cast<To>(to_float(x));
  } else {
    return static_cast<To>(x);
  }
}

// What check_cast lets through: a storage type is cast to f32 or bf16 only, and from them.
template <class To, class From>
inline constexpr bool castable = (!stored<To> && !stored<From>) ||
                                 (stored<To> != stored<From> && !std::is_same_v<To, double> &&
                                  !std::is_same_v<From, double>);

// Floor: sizeof(To) + sizeof(From) bytes an element.
template <class To, class From>
struct CastBody {
  To* to;
  const From* from;
  template <int n>
  struct Loaded {
    Vector<From, n> from;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t, std::int64_t i) const {
    l.from = *reinterpret_cast<const Vector<From, n>*>(from + i);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t i) const {
    Vector<To, n> out;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      out.v[j] = converted<To>(l.from.v[j]);
    }
    *reinterpret_cast<Vector<To, n>*>(to + i) = out;
  }
};

// Calls fn with a value of the element type, f32, bf16, f64 or a storage type.
template <class F>
void with_cast_type(const Tensor& t, F&& fn) {
  if (t.dtype() == DType::f64) {
    fn(double{});
  } else if (is_storage_type(t.dtype())) {
    with_storage_type(t.dtype(), fn);
  } else {
    with_float_type(t.dtype(), fn);
  }
}

// T: an unsigned integer of the elements' size. Floor: sizeof(T) bytes an element.
template <class T>
struct FillBody {
  T* to;
  T value;
  template <int n>
  struct Loaded {};
  template <int n>
  __device__ void load(Loaded<n>&, std::int64_t, std::int64_t) const {}
  template <int n>
  __device__ void store(const Loaded<n>&, std::int64_t, std::int64_t i) const {
    Vector<T, n> out;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      out.v[j] = value;
    }
    *reinterpret_cast<Vector<T, n>*>(to + i) = out;
  }
};

template <class T>
void fill_bits(CudaStream& stream, const Tensor& t, T value) {
  if (value == 0) {
    if (t.bytes() > 0) {
      const auto set = [data = t.data(), bytes = t.bytes()](cudaStream_t order) {
        check(cudaMemsetAsync(data, 0, bytes, order), "fill");
      };
      stream.handle().give("memory set to 0", set, {}, t.data(), t.bytes());
    }
    return;
  }
  constexpr int width = 16 / static_cast<int>(sizeof(T));
  for_each_chunk<width, 1>(stream, FillBody<T>{t.as<T>(), value}, 1, t.elements(), all_aligned<width>(t.as<T>()));
}

// to [J, I, columns] <- from [I, J, columns], rows of `columns` units of T moved as they are. Floor: twice their bytes.
template <class T>
struct SwapBody {
  T* to;
  const T* from;
  std::int64_t outer, inner, columns;  // J, I
  template <int n>
  struct Loaded {
    Vector<T, n> from;
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    const std::int64_t j = row / inner, i = row - j * inner;
    l.from = *reinterpret_cast<const Vector<T, n>*>(from + (i * outer + j) * columns + column);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    *reinterpret_cast<Vector<T, n>*>(to + row * columns + column) = l.from;
  }
};

// Runs of rows, as many as fit a launch's parameters.
constexpr int runs_of_launch = 128;

struct Runs {
  std::int64_t begin[runs_of_launch];  // of the run among all rows that are copied, ascending
  std::int64_t from[runs_of_launch], to[runs_of_launch];
  int count;
};

// Floor: twice the bytes moved.
template <class T>
struct RunsBody {
  T* to;
  const T* from;
  std::int64_t columns;
  Runs runs;
  template <int n>
  struct Loaded {
    Vector<T, n> from;
    std::int64_t row;  // in `to`
  };
  template <int n>
  __device__ void load(Loaded<n>& l, std::int64_t row, std::int64_t column) const {
    int low = 0, high = runs.count;  // the last run that begins at `row` or before
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (runs.begin[middle] <= row ? low : high) = middle;
    }
    const std::int64_t within = row - runs.begin[low];
    l.row = runs.to[low] + within;
    l.from = *reinterpret_cast<const Vector<T, n>*>(from + (runs.from[low] + within) * columns + column);
  }
  template <int n>
  __device__ void store(const Loaded<n>& l, std::int64_t, std::int64_t column) const {
    *reinterpret_cast<Vector<T, n>*>(to + l.row * columns + column) = l.from;
  }
};

// Calls fn with a value of the widest unit that addresses and rows are multiples of: 16, 8, 4, 2 bytes or 1.
template <class F>
void with_unit(const void* to, const void* from, std::size_t row_bytes, F&& fn) {
  const std::size_t bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | row_bytes;
  if (bits % 16 == 0) {
    fn(uint4{});
  } else if (bits % 8 == 0) {
    fn(std::uint64_t{});
  } else if (bits % 4 == 0) {
    fn(std::uint32_t{});
  } else if (bits % 2 == 0) {
    fn(std::uint16_t{});
  } else {
    fn(std::uint8_t{});
  }
}

}  // namespace

void CudaStream::copy(const Tensor& to, const Tensor& from) {
  check_copy(to, from);
  if (from.bytes() > 0) {
    copy_bytes(stream_, to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice);
  }
}

void CudaStream::cast(const Tensor& to, const Tensor& from) {
  check_cast(to, from);
  with_cast_type(from, [&](auto source) {
    with_cast_type(to, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      if constexpr (castable<To, From>) {
        const CastBody<To, From> body{to.as<To>(), from.as<From>()};
        for_each_chunk<8, 2>(*this, body, 1, from.elements(), all_aligned<8>(body.to, body.from));
      }
    });
  });
}

void CudaStream::fill(const Tensor& t, double value) {
  require_defined("fill", "t", t);
  const auto wide = static_cast<float>(value);
  switch (t.dtype()) {
    case DType::f32: return fill_bits(*this, t, std::bit_cast<std::uint32_t>(wide));
    case DType::bf16: return fill_bits(*this, t, std::uint16_t{__bfloat16_as_ushort(__float2bfloat16_rn(wide))});
    case DType::f64: return fill_bits(*this, t, std::bit_cast<std::uint64_t>(value));
    case DType::i32: return fill_bits(*this, t, static_cast<std::uint32_t>(static_cast<std::int32_t>(value)));
    case DType::i64: return fill_bits(*this, t, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    case DType::u8: return fill_bits(*this, t, static_cast<std::uint8_t>(value));
    case DType::i8: return fill_bits(*this, t, static_cast<std::uint8_t>(Narrow<std::int8_t>::of(wide)));
    case DType::f8_e4m3: return fill_bits(*this, t, Narrow<Float8E4M3>::of(wide).bits);
    case DType::f8_e5m2: return fill_bits(*this, t, Narrow<Float8E5M2>::of(wide).bits);
  }
}

void CudaStream::copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  const std::size_t row_bytes = check_copy_rows(to, from, runs);
  if (row_bytes == 0) {
    return;
  }
  with_unit(to.data(), from.data(), row_bytes, [&](auto unit) {
    using T = decltype(unit);
    const auto columns = static_cast<std::int64_t>(row_bytes / sizeof(T));
    RunsBody<T> body{to.as<T>(), from.as<T>(), columns, {}};
    std::int64_t rows = 0;
    const auto copy_noted = [&] {
      for_each_chunk<1, 4>(*this, body, rows, columns, true);
      body.runs.count = 0;
      rows = 0;
    };
    for (const RowRun& run : runs) {
      if (run.rows > 0) {
        body.runs.begin[body.runs.count] = rows;
        body.runs.from[body.runs.count] = run.from;
        body.runs.to[body.runs.count] = run.to;
        rows += run.rows;
        if (++body.runs.count == runs_of_launch) {
          copy_noted();
        }
      }
    }
    copy_noted();
  });
}

void CudaStream::swap_outer(const Tensor& to, const Tensor& from) {
  check_swap_outer(to, from);
  const std::size_t row_bytes = static_cast<std::size_t>(to.dim(2)) * size_of(to.dtype());
  with_unit(to.data(), from.data(), row_bytes, [&](auto unit) {
    using T = decltype(unit);
    const auto columns = static_cast<std::int64_t>(row_bytes / sizeof(T));
    const SwapBody<T> body{to.as<T>(), from.as<T>(), to.dim(0), to.dim(1), columns};
    for_each_chunk<1, 4>(*this, body, to.dim(0) * to.dim(1), columns, true);
  });
}

}  // namespace orthant::cuda
