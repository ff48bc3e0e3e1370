#include "experts/cuda/hopper/hopper_kernel.h"

namespace orthant::cuda {

using Product = HopperProduct<GroupedLayout::nn, cute::Shape<cute::_64, cute::_128, cute::_128>,
                              cute::Shape<cute::_1, cute::_1, cute::_1>, PingPong>;
constinit const HopperKernel hopper_nn_small = make_hopper_kernel<Product>("nn 64x128x128 ping-pong");

}  // namespace orthant::cuda
