// A CutlassKernel from CUTLASS's building blocks. Included by the files that instantiate those of one layout
// (*_cutlass.cu): reading CUTLASS takes two thirds of the time of compiling one kernel.
#pragma once

#include <cutlass/cutlass.h>

#include <cutlass/epilogue/thread/activation.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <orthant/error.h>

#include "core/device/cuda/launch.h"
#include "experts/cuda/cutlass/cutlass_gemm.h"

namespace orthant::cuda {

// A stride of a matrix whose rows or columns are contiguous: its one run-time part is the distance of the others.
template <class Stride>
__device__ Stride stride_of(std::int64_t leading) {
  Stride stride{};
  if constexpr (cute::is_static<decltype(cute::get<0>(stride))>::value) {
    cute::get<1>(stride) = leading;
  } else {
    cute::get<0>(stride) = leading;
  }
  return stride;
}

// What the kernel reads of every group: arrays of `experts` in one piece of memory, each from a multiple of 256 on.
template <class Shape, class StrideA, class StrideB, class StrideD, class Input, class Output>
struct GroupArrays {
  Shape* shape;
  StrideA* stride_a;
  StrideB* stride_b;
  StrideD* stride_d;
  const Input** a;
  const Input** b;
  Output** d;

  static std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  static std::size_t bytes(std::int64_t experts) {
    const auto e = static_cast<std::size_t>(experts);
    return padded(e * sizeof(Shape)) + padded(e * sizeof(StrideA)) + padded(e * sizeof(StrideB)) +
           padded(e * sizeof(StrideD)) + 3 * padded(e * sizeof(void*));
  }
  GroupArrays(void* memory, std::int64_t experts) {
    auto* at = static_cast<std::byte*>(memory);
    const auto take = [&]<class T>(T*& array) {
      array = reinterpret_cast<T*>(at);
      at += padded(static_cast<std::size_t>(experts) * sizeof(T));
    };
    take(shape);
    take(stride_a);
    take(stride_b);
    take(stride_d);
    take(a);
    take(b);
    take(d);
  }
};

// One thread an expert. One without rows becomes a group of no tiles: TMA takes no empty extent, and with K = 0
// CUTLASS 4.2's kernels would store what the registers held (its issues 2547 and 2674).
template <class Arrays, class Shape, class StrideA, class StrideB, class StrideD, class Input, class Output>
__global__ void describe_groups(Arrays out, GroupedProblem p) {
  const std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e >= p.experts) {
    return;
  }
  const RowRange rows = rows_of(p, e);
  const Group group = group_of(p, e, rows);
  const RowStrides strides = strides_of(p);
  const bool empty = rows.begin == rows.end;
  out.shape[e] = Shape{empty ? 0 : static_cast<int>(group.m), empty ? 0 : static_cast<int>(group.n),
                       static_cast<int>(empty ? 1 : group.k)};
  out.stride_a[e] = stride_of<StrideA>(strides.a);
  out.stride_b[e] = stride_of<StrideB>(strides.b);
  out.stride_d[e] = stride_of<StrideD>(strides.c);
  out.a[e] = static_cast<const Input*>(p.a) + group.a;
  out.b[e] = static_cast<const Input*>(p.b) + group.b;
  out.d[e] = static_cast<Output*>(p.c) + group.c;
}

// Two warp groups of Hopper that multiply one tile together, or two in turns.
struct Cooperative {
  using Architecture = cutlass::arch::Sm90;
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative;
};
struct PingPong {
  using Architecture = cutlass::arch::Sm90;
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
};
// Two multiprocessors of Blackwell that multiply one tile together, or each by itself. Sums are in tensor memory: a
// tile is stored while the next is multiplied.
struct Pair {
  using Architecture = cutlass::arch::Sm100;
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecialized2SmSm100;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecialized2Sm;
};
struct Single {
  using Architecture = cutlass::arch::Sm100;
  using Mainloop = cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmSm100;
  using Epilogue = cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm;
};

template <GroupedLayout layout, class Tile, class Cluster, class Schedule>
struct CutlassProduct {
  static constexpr bool tn = layout == GroupedLayout::tn;
  using Input = cutlass::bfloat16_t;
  using Output = std::conditional_t<tn, float, cutlass::bfloat16_t>;
  using Row = cutlass::layout::RowMajor;
  using Column = cutlass::layout::ColumnMajor;
  using LayoutA = std::conditional_t<tn, Column, Row>;
  using LayoutB = std::conditional_t<layout == GroupedLayout::nt, Column, Row>;
  using Problems = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
  static constexpr int align_input = 8, align_output = 16 / sizeof(Output);

  // tn adds to what is there. The others only round: no scaling, and no shared memory for an old c. Blackwell's builder
  // takes the same trees.
  using Round = cutlass::epilogue::fusion::Sm90EVT<
      cutlass::epilogue::fusion::Sm90Compute<cutlass::epilogue::thread::Identity, Output, float,
                                             cutlass::FloatRoundStyle::round_to_nearest>,
      cutlass::epilogue::fusion::Sm90AccFetch>;
  using Add = cutlass::epilogue::fusion::LinearCombination<Output, float>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      typename Schedule::Architecture, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, std::conditional_t<tn, Output, void>, Row*,
      align_output, Output, Row*, align_output, typename Schedule::Epilogue,
      std::conditional_t<tn, Add, Round>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      typename Schedule::Architecture, cutlass::arch::OpClassTensorOp, Input, LayoutA*, align_input, Input, LayoutB*,
      align_input, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename Schedule::Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Problems, Mainloop, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using Shape = typename Problems::UnderlyingProblemShape;
  using StrideA = typename Kernel::InternalStrideA;
  using StrideB = typename Kernel::InternalStrideB;
  using StrideD = typename Kernel::InternalStrideD;
  using Arrays = GroupArrays<Shape, StrideA, StrideB, StrideD, Input, Output>;

  static typename Gemm::Arguments arguments(const GroupedProblem& p, const Arrays& arrays, int sm_count) {
    typename Gemm::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    arguments.problem_shape = {static_cast<int>(p.experts), arrays.shape, nullptr};
    arguments.mainloop = {arrays.a, arrays.stride_a, arrays.b, arrays.stride_b};
    if constexpr (tn) {
      arguments.epilogue.thread.alpha = 1;
      arguments.epilogue.thread.beta = p.beta;
      arguments.epilogue.ptr_C = const_cast<const Output**>(arrays.d);
      arguments.epilogue.dC = arrays.stride_d;
    }
    arguments.epilogue.ptr_D = arrays.d;
    arguments.epilogue.dD = arrays.stride_d;
    arguments.hw_info.sm_count = sm_count;
    return arguments;
  }

  static std::size_t workspace_bytes(const GroupedProblem& p, int sm_count) {
    return Arrays::bytes(p.experts) + Gemm::get_workspace_size(arguments(p, Arrays(nullptr, p.experts), sm_count));
  }

  static void run(const GroupedProblem& p, int sm_count, void* workspace, cudaStream_t stream) {
    const Arrays arrays(workspace, p.experts);
    launch(describe_groups<Arrays, Shape, StrideA, StrideB, StrideD, Input, Output>,
           Grid{blocks_for(p.experts, 128), 128}, stream, arrays, p);
    const auto good = [&](cutlass::Status status, const char* what) {
      require(status == cutlass::Status::kSuccess,
              "grouped_gemm: CUTLASS could not {} a product of {} experts, {} rows, m {}, n {}, k {}: {}", what,
              p.experts, p.rows, p.m, p.n, p.k, cutlass::cutlassGetStatusString(status));
    };
    Gemm gemm;
    const auto how = arguments(p, arrays, sm_count);
    good(Gemm::can_implement(how), "take");
    good(gemm.initialize(how, static_cast<std::byte*>(workspace) + Arrays::bytes(p.experts), stream), "set up");
    good(gemm.run(stream), "launch");
  }
};

template <class Product>
constexpr CutlassKernel make_cutlass_kernel(const char* name) {
  return {name, Product::workspace_bytes, Product::run};
}

}  // namespace orthant::cuda
