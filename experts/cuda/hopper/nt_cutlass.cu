#include "experts/cuda/hopper/hopper_kernel.h"

namespace orthant::cuda {

using NtOverlapped = HopperProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::Int<192>, cute::_64>,
                                   cute::Shape<cute::_1, cute::_2, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nt_overlapped = make_hopper_kernel<NtOverlapped>("nt 128x192x64 ping-pong");

#ifdef ORTHANT_KERNEL_SAMPLE
constinit const HopperKernel hopper_nt_large = make_hopper_kernel<NtOverlapped>("nt 128x192x64 ping-pong"),
                             hopper_nt_small = make_hopper_kernel<NtOverlapped>("nt 128x192x64 ping-pong");
#else
using NtLarge = HopperProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::_256, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, Cooperative>;
constinit const HopperKernel hopper_nt_large = make_hopper_kernel<NtLarge>("nt 128x256x64 cooperative");

using NtSmall = HopperProduct<GroupedLayout::nt, cute::Shape<cute::_64, cute::_128, cute::_128>,
                              cute::Shape<cute::_1, cute::_1, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nt_small = make_hopper_kernel<NtSmall>("nt 64x128x128 ping-pong");
#endif

}  // namespace orthant::cuda
