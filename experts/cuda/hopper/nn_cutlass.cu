#include "experts/cuda/hopper/hopper_kernel.h"

namespace orthant::cuda {

using NnOverlapped = HopperProduct<GroupedLayout::nn, cute::Shape<cute::_128, cute::Int<192>, cute::_64>,
                                   cute::Shape<cute::_1, cute::_2, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nn_overlapped = make_hopper_kernel<NnOverlapped>("nn 128x192x64 ping-pong");

#ifdef ORTHANT_KERNEL_SAMPLE
constinit const HopperKernel hopper_nn_large = make_hopper_kernel<NnOverlapped>("nn 128x192x64 ping-pong"),
                             hopper_nn_small = make_hopper_kernel<NnOverlapped>("nn 128x192x64 ping-pong");
#else
using NnLarge = HopperProduct<GroupedLayout::nn, cute::Shape<cute::_128, cute::_256, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, Cooperative>;
constinit const HopperKernel hopper_nn_large = make_hopper_kernel<NnLarge>("nn 128x256x64 cooperative");

using NnSmall = HopperProduct<GroupedLayout::nn, cute::Shape<cute::_64, cute::_128, cute::_128>,
                              cute::Shape<cute::_1, cute::_1, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nn_small = make_hopper_kernel<NnSmall>("nn 64x128x128 ping-pong");
#endif

}  // namespace orthant::cuda
