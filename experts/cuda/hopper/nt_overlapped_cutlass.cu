#include "experts/cuda/hopper/hopper_kernel.h"

namespace orthant::cuda {

using Product = HopperProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::Int<192>, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nt_overlapped = make_hopper_kernel<Product>("nt 128x192x64 ping-pong");

}  // namespace orthant::cuda
