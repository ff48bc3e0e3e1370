#include "experts/cuda/cutlass/cutlass_kernel.h"

namespace orthant::cuda {

using TnPair = CutlassProduct<GroupedLayout::tn, cute::Shape<cute::_256, cute::_256, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, Pair>;
constinit const CutlassKernel blackwell_tn_pair = make_cutlass_kernel<TnPair>("tn 256x256x64 by two multiprocessors");

}  // namespace orthant::cuda
