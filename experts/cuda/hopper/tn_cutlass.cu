#include "experts/cuda/hopper/hopper_kernel.h"

namespace orthant::cuda {

using TnLarge = HopperProduct<GroupedLayout::tn, cute::Shape<cute::_128, cute::_256, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, Cooperative>;
constinit const HopperKernel hopper_tn_large = make_hopper_kernel<TnLarge>("tn 128x256x64 cooperative");

}  // namespace orthant::cuda
