#include "experts/cuda/describe_products.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {
namespace {

constexpr int describing_threads = 256;

struct DescribeTask {
  GroupedProblem product[DescribedProducts::most];
  GroupArrays arrays[DescribedProducts::most];
  int count;
  float* zeros;
  std::int64_t zero_count;
};

__device__ void describe(const GroupArrays& out, const GroupedProblem& p, std::int64_t e, RowRange rows) {
  const Group group = group_of(p, e, rows);
  const RowStrides strides = strides_of(p);
  const bool empty = rows.begin == rows.end;
  const std::int64_t input = 2, output = p.layout == GroupedLayout::tn ? 4 : 2;  // bytes of an element
  std::int32_t* const shape = reinterpret_cast<std::int32_t*>(out.shape + e);
  shape[0] = empty ? 0 : static_cast<std::int32_t>(group.m);
  shape[1] = empty ? 0 : static_cast<std::int32_t>(group.n);
  shape[2] = empty ? 1 : static_cast<std::int32_t>(group.k);
  out.stride_a[e] = strides.a;
  out.stride_b[e] = strides.b;
  out.stride_c[e] = strides.c;
  out.a[e] = static_cast<const std::byte*>(p.a) + input * group.a;
  out.b[e] = static_cast<const std::byte*>(p.b) + input * group.b;
  out.c[e] = static_cast<std::byte*>(p.c) + output * group.c;
}

// A row of blocks an expert. Floor: the bytes that become zero.
__global__ void __launch_bounds__(describing_threads) describe_products(DescribeTask task) {
  const std::int64_t e = blockIdx.y, first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const RowRange rows = rows_of(task.product[0], e);
  if (first < task.count) {
    describe(task.arrays[first], task.product[first], e, rows);
  }
  for (int i = 0; i < task.count && rows.begin == rows.end; ++i) {
    const GroupedProblem& p = task.product[i];
    if (p.layout == GroupedLayout::tn && p.beta == 0) {
      float* const c = static_cast<float*>(p.c) + e * p.m * p.n;
      for (std::int64_t j = first; j < p.m * p.n; j += step) {
        c[j] = 0;
      }
    }
  }
  for (std::int64_t j = e * step + first; j < task.zero_count; j += gridDim.y * step) {
    task.zeros[j] = 0;
  }
}

// Hands out the arrays of one piece of memory, or counts their bytes where that is null.
class ArrayTaker {
 public:
  explicit ArrayTaker(std::byte* memory) : memory_(memory) {}

  GroupArrays product(std::int64_t experts) {
    GroupArrays out;
    take(out.shape, experts);
    take(out.stride_a, experts);
    take(out.stride_b, experts);
    take(out.stride_c, experts);
    take(out.a, experts);
    take(out.b, experts);
    take(out.c, experts);
    return out;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  template <class T>
  void take(T*& array, std::int64_t experts) {
    array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (experts * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
  }

  std::byte* const memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace

DescribedProducts::DescribedProducts(CudaStream& stream, std::span<const GroupedProblem> products,
                                     const Tensor& zeros) {
  require(!products.empty() && products.size() <= most, "{} products to describe, expected 1 to {}", products.size(),
          most);
  const std::int64_t experts = products.front().experts, count = static_cast<std::int64_t>(products.size());
  ArrayTaker one(nullptr);
  static_cast<void>(one.product(experts));
  memory_ = stream.device().empty(DType::u8, {count * one.bytes()});
  ArrayTaker taker(static_cast<std::byte*>(memory_.data()));
  DescribeTask task{.product = {},
                    .arrays = {},
                    .count = static_cast<int>(count),
                    .zeros = zeros.as<float>(),
                    .zero_count = zeros.defined() ? zeros.elements() : 0};
  std::int64_t most_zeros = 0;  // of one expert
  for (std::size_t i = 0; i < products.size(); ++i) {
    const GroupedProblem& p = products[i];
    require(p.experts == experts && p.offset == products.front().offset && p.rows == products.front().rows,
            "internal error: products of other experts or rows are described together");
    arrays_[i] = taker.product(experts);
    task.product[i] = p;
    task.arrays[i] = arrays_[i];
    if (p.layout == GroupedLayout::tn && p.beta == 0) {
      most_zeros = std::max(most_zeros, p.m * p.n);
    }
  }
  const unsigned across = std::max(blocks_for(most_zeros, describing_threads * 8, 64), 1u);
  launch(describe_products, Grid{dim3(across, static_cast<unsigned>(experts)), describing_threads}, stream.handle(),
         task);
}

}  // namespace orthant::cuda
