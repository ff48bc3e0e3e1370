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

#include <bit>

#include "core/device/cuda/launch.h"
#include "experts/cuda/cutlass/cutlass_gemm.h"

namespace orthant::cuda {

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
  // A stride is one number at run time, the distance of the rows or columns that are contiguous.
  static_assert(sizeof(Shape) == sizeof(*GroupArrays::shape) && sizeof(StrideA) == sizeof(std::int64_t) &&
                sizeof(StrideB) == sizeof(std::int64_t) && sizeof(StrideD) == sizeof(std::int64_t));

  static typename Gemm::Arguments arguments(const GroupedProblem& p, const GroupArrays& groups, int multiprocessors) {
    typename Gemm::Arguments arguments{};
    auto** const d = reinterpret_cast<Output**>(groups.c);
    auto* const stride_d = reinterpret_cast<StrideD*>(groups.stride_c);
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    arguments.problem_shape = {static_cast<int>(p.experts), reinterpret_cast<Shape*>(groups.shape), nullptr};
    arguments.mainloop = {reinterpret_cast<const Input**>(groups.a), reinterpret_cast<StrideA*>(groups.stride_a),
                          reinterpret_cast<const Input**>(groups.b), reinterpret_cast<StrideB*>(groups.stride_b)};
    if constexpr (tn) {
      arguments.epilogue.thread.alpha = 1;
      arguments.epilogue.thread.beta = p.beta;
      arguments.epilogue.ptr_C = const_cast<const Output**>(d);
      arguments.epilogue.dC = stride_d;
    }
    arguments.epilogue.ptr_D = d;
    arguments.epilogue.dD = stride_d;
    arguments.hw_info.sm_count = multiprocessors;
    return arguments;
  }

  static std::size_t workspace_bytes(const GroupedProblem& p, int multiprocessors) {
    return Gemm::get_workspace_size(arguments(p, {}, multiprocessors));
  }

  // As the adapter's initialize() and run(), but that the driver is asked for shared memory once.
  static void run(const CudaStream& stream, const GroupedProblem& p, const GroupArrays& groups, void* workspace) {
    const auto good = [p](cutlass::Status status, const char* what) {
      require(status == cutlass::Status::kSuccess,
              "grouped_gemm: CUTLASS could not {} a product of {} experts, {} rows, m {}, n {}, k {}: {}", what,
              p.experts, p.rows, p.m, p.n, p.k, cutlass::cutlassGetStatusString(status));
    };
    const auto how = arguments(p, groups, stream.cuda().multiprocessors());
    good(Gemm::can_implement(how), "take");
    good(Kernel::initialize_workspace(how, workspace, stream.handle().handle()), "set up");  // enqueues nothing
    const SharedBytes shared = stream.cuda().shared(Kernel::SharedStorageSize);
    check(shared.limits->allow(reinterpret_cast<const void*>(cutlass::device_kernel<Kernel>), shared.bytes),
          "shared memory of CUTLASS's kernel");
    auto product = [good, params = Kernel::to_underlying_arguments(how, workspace)](cudaStream_t order) mutable {
      good(Gemm::run(params, order), "launch");
    };
    static constexpr char name[] = "experts' product";  // of this kernel
    stream.handle().give(name, product, {}, p.experts, p.rows, p.m, p.n, p.k, std::bit_cast<std::uint32_t>(p.beta),
                         groups.shape, groups.a, workspace);
  }
};

template <class Product>
constexpr CutlassKernel make_cutlass_kernel(const char* name) {
  return {name, Product::workspace_bytes, Product::run};
}

}  // namespace orthant::cuda
