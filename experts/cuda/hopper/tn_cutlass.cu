#include "experts/cuda/cutlass/cutlass_kernel.h"

namespace orthant::cuda {

using TnLarge = CutlassProduct<GroupedLayout::tn, cute::Shape<cute::_128, cute::_256, cute::_64>,
                               cute::Shape<cute::_2, cute::_1, cute::_1>, Cooperative>;
constinit const CutlassKernel hopper_tn_large = make_cutlass_kernel<TnLarge>("tn 128x256x64 cooperative");

}  // namespace orthant::cuda
