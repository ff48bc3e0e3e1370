#include "experts/cuda/cutlass/cutlass_kernel.h"

namespace orthant::cuda {

using NnOverlapped = CutlassProduct<GroupedLayout::nn, cute::Shape<cute::_128, cute::Int<192>, cute::_64>,
                                    cute::Shape<cute::_1, cute::_2, cute::_1>, PingPong>;
constinit const CutlassKernel hopper_nn_overlapped = make_cutlass_kernel<NnOverlapped>("nn 128x192x64 ping-pong");

#ifdef ORTHANT_KERNEL_SAMPLE
constinit const CutlassKernel hopper_nn_large = make_cutlass_kernel<NnOverlapped>("nn 128x192x64 ping-pong"),
                              hopper_nn_square = make_cutlass_kernel<NnOverlapped>("nn 128x192x64 ping-pong"),
                              hopper_nn_small = make_cutlass_kernel<NnOverlapped>("nn 128x192x64 ping-pong");
#else
using NnLarge = CutlassProduct<GroupedLayout::nn, cute::Shape<cute::_128, cute::_256, cute::_64>,
                               cute::Shape<cute::_2, cute::_1, cute::_1>, Cooperative>;
constinit const CutlassKernel hopper_nn_large = make_cutlass_kernel<NnLarge>("nn 128x256x64 cooperative");

using NnSquare = CutlassProduct<GroupedLayout::nn, cute::Shape<cute::_128, cute::_128, cute::_64>,
                                cute::Shape<cute::_1, cute::_2, cute::_1>, PingPong>;
constinit const CutlassKernel hopper_nn_square = make_cutlass_kernel<NnSquare>("nn 128x128x64 ping-pong");

using NnSmall = CutlassProduct<GroupedLayout::nn, cute::Shape<cute::_64, cute::_128, cute::_128>,
                               cute::Shape<cute::_1, cute::_1, cute::_1>, PingPong>;
constinit const CutlassKernel hopper_nn_small = make_cutlass_kernel<NnSmall>("nn 64x128x128 ping-pong");
#endif

}  // namespace orthant::cuda
