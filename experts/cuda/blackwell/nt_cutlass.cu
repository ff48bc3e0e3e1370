#include "experts/cuda/cutlass/cutlass_kernel.h"

namespace orthant::cuda {

using NtPair = CutlassProduct<GroupedLayout::nt, cute::Shape<cute::_256, cute::_256, cute::_64>,
                              cute::Shape<cute::_2, cute::_1, cute::_1>, Pair>;
constinit const CutlassKernel blackwell_nt_pair = make_cutlass_kernel<NtPair>("nt 256x256x64 by two multiprocessors");

using NtSingle = CutlassProduct<GroupedLayout::nt, cute::Shape<cute::_128, cute::_128, cute::_64>,
                                cute::Shape<cute::_1, cute::_1, cute::_1>, Single>;
constinit const CutlassKernel blackwell_nt_single = make_cutlass_kernel<NtSingle>("nt 128x128x64");

}  // namespace orthant::cuda
