#include "experts/cuda/cutlass/cutlass_kernel.h"

namespace orthant::cuda {

using NnPair = CutlassProduct<GroupedLayout::nn, cute::Shape<cute::_256, cute::_256, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, Pair>;
constinit const CutlassKernel blackwell_nn_pair = make_cutlass_kernel<NnPair>("nn 256x256x64 by two multiprocessors");

using NnSingle = CutlassProduct<GroupedLayout::nn, cute::Shape<cute::_128, cute::_128, cute::_64>,
                                cute::Shape<cute::_1, cute::_1, cute::_1>, Single>;
constinit const CutlassKernel blackwell_nn_single = make_cutlass_kernel<NnSingle>("nn 128x128x64");

}  // namespace orthant::cuda
