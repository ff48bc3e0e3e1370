#include "experts/cuda/cutlass/cutlass_kernel.h"

namespace orthant::cuda {

using NtOverlapped = CutlassProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::Int<192>, cute::_64>,
                                    cute::Shape<cute::_1, cute::_2, cute::_1>, PingPong>;
constinit const CutlassKernel hopper_nt_overlapped = make_cutlass_kernel<NtOverlapped>("nt 128x192x64 ping-pong");

#ifdef ORTHANT_KERNEL_SAMPLE
constinit const CutlassKernel hopper_nt_large = make_cutlass_kernel<NtOverlapped>("nt 128x192x64 ping-pong"),
                              hopper_nt_square = make_cutlass_kernel<NtOverlapped>("nt 128x192x64 ping-pong"),
                              hopper_nt_small = make_cutlass_kernel<NtOverlapped>("nt 128x192x64 ping-pong");
#else
using NtLarge = CutlassProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::_256, cute::_64>,
                               cute::Shape<cute::_2, cute::_1, cute::_1>, Cooperative>;
constinit const CutlassKernel hopper_nt_large = make_cutlass_kernel<NtLarge>("nt 128x256x64 cooperative");

using NtSquare = CutlassProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::_128, cute::_64>,
                                cute::Shape<cute::_1, cute::_2, cute::_1>, PingPong>;
constinit const CutlassKernel hopper_nt_square = make_cutlass_kernel<NtSquare>("nt 128x128x64 ping-pong");

using NtSmall = CutlassProduct<GroupedLayout::nt, cute::Shape<cute::_64, cute::_128, cute::_128>,
                               cute::Shape<cute::_1, cute::_1, cute::_1>, PingPong>;
constinit const CutlassKernel hopper_nt_small = make_cutlass_kernel<NtSmall>("nt 64x128x128 ping-pong");
#endif

}  // namespace orthant::cuda
