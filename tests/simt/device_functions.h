// What CUDA C++ gives to kernels, for the CPU: the part that the kernels here may use (README.md).
//
// Meanings are those of the CUDA C++ Programming Guide. Barriers and warp collectives check that all who must come do.
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <bit>
#include <concepts>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "tests/simt/engine.h"

#define threadIdx (::orthant::simt::position->thread)
#define blockIdx (::orthant::simt::position->block)
#define blockDim (::orthant::simt::position->block_size)
#define gridDim (::orthant::simt::position->grid_size)

namespace orthant::simt {

// What a shuffle or a match may exchange.
template <class T>
concept LaneValue = (std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));

template <LaneValue T>
std::uint64_t bits_of(T value) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return std::bit_cast<std::uint64_t>(value);
  }
}

template <LaneValue T>
T shuffle(const char* function, unsigned mask, T value, int source, const std::source_location& where) {
  const std::uint64_t bits = warp_collective(Collective::shuffle, function, mask, bits_of(value), source, where);
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  } else {
    return std::bit_cast<T>(bits);
  }
}

// The first lane of this lane's part of the warp, of `width` lanes.
inline int segment(int lane, int width, const std::source_location& where) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    misuse("the width of a shuffle must be 1, 2, 4, 8, 16 or 32", where);
  }
  return lane & ~(width - 1);
}

inline int lane() {
  return static_cast<int>(position->thread.x % 32);
}

inline unsigned ballot(const char* function, unsigned mask, bool predicate, const std::source_location& where) {
  return static_cast<unsigned>(warp_collective(Collective::ballot, function, mask, predicate ? 1 : 0, 0, where));
}

}  // namespace orthant::simt

inline constexpr int warpSize = 32;

// --- barriers and fences
inline void __syncthreads(const std::source_location where = std::source_location::current()) {
  orthant::simt::block_barrier("__syncthreads", false, where);
}
inline int __syncthreads_count(int predicate, const std::source_location where = std::source_location::current()) {
  return orthant::simt::block_barrier("__syncthreads_count", predicate != 0, where);
}
inline int __syncthreads_or(int predicate, const std::source_location where = std::source_location::current()) {
  return orthant::simt::block_barrier("__syncthreads_or", predicate != 0, where) > 0;
}
inline int __syncthreads_and(int predicate, const std::source_location where = std::source_location::current()) {
  return orthant::simt::block_barrier("__syncthreads_and", predicate == 0, where) == 0;
}
inline void __syncwarp(unsigned mask = ~0u, const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  warp_collective(Collective::barrier, "__syncwarp", mask, 0, 0, where);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// --- warp collectives
template <orthant::simt::LaneValue T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  return shuffle("__shfl_sync", mask, value, segment(lane(), width, where) | (source & (width - 1)), where);
}
template <orthant::simt::LaneValue T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  const int at = lane() - static_cast<int>(delta);
  return shuffle("__shfl_up_sync", mask, value, at < segment(lane(), width, where) ? lane() : at, where);
}
template <orthant::simt::LaneValue T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  const int at = lane() + static_cast<int>(delta);
  return shuffle("__shfl_down_sync", mask, value, at < segment(lane(), width, where) + width ? at : lane(), where);
}
template <orthant::simt::LaneValue T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  const int at = lane() ^ lanes;
  return shuffle("__shfl_xor_sync", mask, value, at < segment(lane(), width, where) + width ? at : lane(), where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const std::source_location where = std::source_location::current()) {
  return orthant::simt::ballot("__ballot_sync", mask, predicate != 0, where);
}
inline int __any_sync(unsigned mask, int predicate,
                      const std::source_location where = std::source_location::current()) {
  return orthant::simt::ballot("__any_sync", mask, predicate != 0, where) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const std::source_location where = std::source_location::current()) {
  return orthant::simt::ballot("__all_sync", mask, predicate == 0, where) == 0;
}
template <orthant::simt::LaneValue T>
unsigned __match_any_sync(unsigned mask, T value, const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  return static_cast<unsigned>(warp_collective(Collective::match, "__match_any_sync", mask, bits_of(value), 0, where));
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value,
                                  const std::source_location where = std::source_location::current()) {
  using namespace orthant::simt;
  return static_cast<unsigned>(warp_collective(Collective::greatest, "__reduce_max_sync", mask, value, 0, where));
}

// --- atomics. None on floats: their sums would depend on the order of threads.
namespace orthant::simt {

template <class T>
concept AtomicInteger = std::integral<T> &&(sizeof(T) == 4 || sizeof(T) == 8);

template <AtomicInteger T, class F>
T atomic_update(T* address, const F& updated) {
  std::atomic_ref<T> at(*address);
  T old = at.load();
  while (!at.compare_exchange_weak(old, updated(old))) {
  }
  return old;
}

}  // namespace orthant::simt

template <orthant::simt::AtomicInteger T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <orthant::simt::AtomicInteger T>
T atomicSub(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_sub(value);
}
template <orthant::simt::AtomicInteger T>
T atomicAnd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_and(value);
}
template <orthant::simt::AtomicInteger T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_or(value);
}
template <orthant::simt::AtomicInteger T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  return orthant::simt::atomic_update(address, [&](T old) { return old < value ? value : old; });
}
template <orthant::simt::AtomicInteger T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  return orthant::simt::atomic_update(address, [&](T old) { return value < old ? value : old; });
}
template <orthant::simt::AtomicInteger T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value);
}
template <orthant::simt::AtomicInteger T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value);
  return expected;
}

// --- loads and stores with a hint for the caches
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> value) {
  *p = value;
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> value) {
  *p = value;
}

// --- bits
inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}

// --- mathematics that <math.h> lacks
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(nearbyintf(x));
}

#define ORTHANT_SIMT_MIN_MAX(type)  \
  inline type min(type a, type b) { \
    return b < a ? b : a;           \
  }                                 \
  inline type max(type a, type b) { \
    return a < b ? b : a;           \
  }
ORTHANT_SIMT_MIN_MAX(int)
ORTHANT_SIMT_MIN_MAX(unsigned)
ORTHANT_SIMT_MIN_MAX(long)
ORTHANT_SIMT_MIN_MAX(unsigned long)
ORTHANT_SIMT_MIN_MAX(long long)
ORTHANT_SIMT_MIN_MAX(unsigned long long)
#undef ORTHANT_SIMT_MIN_MAX
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}

[[noreturn]] inline void __trap(const std::source_location where = std::source_location::current()) {
  orthant::simt::misuse("__trap", where);
}
