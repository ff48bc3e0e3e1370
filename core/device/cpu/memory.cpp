// The CPU stream's order (all work is done when a call returns) and its memory operations.
#include <cstring>

#include "core/base/storage_types.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/parallel.h"
#include "core/device/operation_checks.h"

namespace orthant {
namespace {

constexpr std::int64_t byte_grain = 1 << 18;
constexpr std::int64_t element_grain = 1 << 15;

// Ready from the start: the main stream's work is done when the call that asked for it returns.
class DoneEvent : public Event {
 public:
  bool ready() const override { return true; }
  void wait() override {}
};

void copy_bytes(int threads, void* to, const void* from, std::size_t bytes) {
  parallel_for(threads, static_cast<std::int64_t>(bytes), byte_grain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<std::size_t>(end - begin));
  });
}

template <class T>
inline constexpr bool stored = !std::is_floating_point_v<T> && !std::is_same_v<T, BFloat16>;

template <class To, class From>
To converted(From x) {
  if constexpr (stored<From>) {
    return converted<To>(widened(x));
  } else if constexpr (stored<To>) {
    return Narrow<To>::of(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bf16(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

template <class To, class From>
void cast_elements(int threads, To* to, const From* from, std::int64_t n) {
  parallel_for(threads, n, element_grain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      if constexpr (std::is_same_v<From, BFloat16>) {
        to[i] = converted<To>(to_float(from[i]));
      } else {
        to[i] = converted<To>(from[i]);
      }
    }
  });
}

// Calls fn with the elements, f32, bf16, f64 or of a storage type.
template <class F>
void with_cast_type(const Tensor& t, F&& fn) {
  if (t.dtype() == DType::f64) {
    fn(t.as<double>());
  } else if (t.dtype() == DType::bf16) {
    fn(t.as<BFloat16>());
  } else if (is_storage_type(t.dtype())) {
    with_storage_type(t.dtype(), [&](auto type) { fn(t.as<decltype(type)>()); });
  } else {
    fn(t.as<float>());
  }
}

template <class T>
void fill_elements(int threads, T* t, std::int64_t n, T value) {
  parallel_for(threads, n, element_grain,
               [&](std::int64_t begin, std::int64_t end) { std::fill(t + begin, t + end, value); });
}

}  // namespace

Device& CpuStream::device() const {
  return device_;
}

std::shared_ptr<Event> CpuStream::record() {
  return std::make_shared<DoneEvent>();
}

void CpuStream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  event->wait();
}

void CpuStream::host(std::function<void()> work) {
  work();
}

void CpuStream::synchronize() {}

void CpuStream::copy(const Tensor& to, const Tensor& from) {
  check_copy(to, from);
  copy_bytes(threads_, to.data(), from.data(), from.bytes());
}

void CpuStream::cast(const Tensor& to, const Tensor& from) {
  check_cast(to, from);
  with_cast_type(from, [&](const auto* source) {
    with_cast_type(to, [&](auto* target) { cast_elements(threads_, target, source, from.elements()); });
  });
}

void CpuStream::fill(const Tensor& t, double value) {
  require_defined("fill", "t", t);
  const std::int64_t n = t.elements();
  switch (t.dtype()) {
    case DType::f32: return fill_elements(threads_, t.as<float>(), n, static_cast<float>(value));
    case DType::bf16: return fill_elements(threads_, t.as<BFloat16>(), n, to_bf16(static_cast<float>(value)));
    case DType::f64: return fill_elements(threads_, t.as<double>(), n, value);
    case DType::i32: return fill_elements(threads_, t.as<std::int32_t>(), n, static_cast<std::int32_t>(value));
    case DType::i64: return fill_elements(threads_, t.as<std::int64_t>(), n, static_cast<std::int64_t>(value));
    case DType::u8: return fill_elements(threads_, t.as<std::uint8_t>(), n, static_cast<std::uint8_t>(value));
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return with_storage_type(t.dtype(), [&](auto type) {
        using T = decltype(type);
        fill_elements(threads_, t.as<T>(), n, Narrow<T>::of(static_cast<float>(value)));
      });
  }
}

void CpuStream::upload(const Tensor& to, const void* host) {
  require_defined("upload", "to", to);
  if (to.bytes() > 0) {
    copy_bytes(threads_, to.data(), host, to.bytes());
  }
}

void CpuStream::download(void* host, const Tensor& from) {
  require_defined("download", "from", from);
  if (from.bytes() > 0) {
    copy_bytes(threads_, host, from.data(), from.bytes());
  }
}

void CpuStream::upload(const Tensor& to, const Tensor& from_host) {
  check_transfer("upload", from_host, to);
  copy_bytes(threads_, to.data(), from_host.data(), to.bytes());
}

void CpuStream::download(const Tensor& to_host, const Tensor& from) {
  check_transfer("download", to_host, from);
  copy_bytes(threads_, to_host.data(), from.data(), from.bytes());
}

void CpuStream::copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  const std::size_t row_bytes = check_copy_rows(to, from, runs);
  for (const RowRun& run : runs) {
    copy_bytes(threads_, to.as<std::byte>() + static_cast<std::size_t>(run.to) * row_bytes,
               from.as<std::byte>() + static_cast<std::size_t>(run.from) * row_bytes,
               static_cast<std::size_t>(run.rows) * row_bytes);
  }
}

void CpuStream::swap_outer(const Tensor& to, const Tensor& from) {
  check_swap_outer(to, from);
  const std::int64_t outer = to.dim(0), inner = to.dim(1);
  const std::size_t bytes = static_cast<std::size_t>(to.dim(2)) * size_of(to.dtype());
  if (bytes == 0) {
    return;
  }
  const auto grain = byte_grain / static_cast<std::int64_t>(bytes) + 1;
  parallel_for(threads_, outer * inner, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t source = r % inner * outer + r / inner;
      std::memcpy(to.as<std::byte>() + static_cast<std::size_t>(r) * bytes,
                  from.as<std::byte>() + static_cast<std::size_t>(source) * bytes, bytes);
    }
  });
}

}  // namespace orthant
