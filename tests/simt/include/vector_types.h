// CUDA's qualifiers and vector types, for the CPU. Names, members and alignments are CUDA's.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static_assert(false, "shared memory is declared with ORTHANT_SHARED (core/device/cuda/launch.h)");

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define ORTHANT_SIMT_VECTORS(type, name, bytes)                   \
  struct alignas(2 * bytes) name##2 {                             \
    type x, y;                                                    \
  };                                                              \
  struct alignas(4 * bytes > 16 ? 16 : 4 * bytes) name##4 {       \
    type x, y, z, w;                                              \
  };                                                              \
  inline name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                          \
  }
ORTHANT_SIMT_VECTORS(signed char, char, 1)
ORTHANT_SIMT_VECTORS(unsigned char, uchar, 1)
ORTHANT_SIMT_VECTORS(short, short, 2)
ORTHANT_SIMT_VECTORS(unsigned short, ushort, 2)
ORTHANT_SIMT_VECTORS(int, int, 4)
ORTHANT_SIMT_VECTORS(unsigned, uint, 4)
ORTHANT_SIMT_VECTORS(float, float, 4)
ORTHANT_SIMT_VECTORS(long long, longlong, 8)
ORTHANT_SIMT_VECTORS(unsigned long long, ulonglong, 8)
ORTHANT_SIMT_VECTORS(double, double, 8)
#undef ORTHANT_SIMT_VECTORS

struct int3 {
  int x, y, z;
};
struct float3 {
  float x, y, z;
};
