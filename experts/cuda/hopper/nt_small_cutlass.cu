#include "experts/cuda/hopper/hopper_kernel.h"

namespace orthant::cuda {

using Product = HopperProduct<GroupedLayout::nt, cute::Shape<cute::_64, cute::_128, cute::_128>,
                              cute::Shape<cute::_1, cute::_1, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nt_small = make_hopper_kernel<Product>("nt 64x128x128 ping-pong");

}  // namespace orthant::cuda
