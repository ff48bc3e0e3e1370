// The conjugate pairs of the tensor axis. `group`: the ranks along it, n of them. Rows are cut into n equal runs, so
// gathering and scattering them needs no copies.
//
// Sources: Shoeybi et al., "Megatron-LM" (2019): f and g; Korthikanti et al., "Reducing Activation Recomputation in
// Large Transformer Models" (2022): the pairs with rows cut between them.
#pragma once

#include <memory>

#include <orthant/plan.h>

namespace orthant::tensor {

// Tensors are changed in place where their shape stays.
// f: x [T, d] the same on all ranks -> x. Backward: the ranks' parts of dx are added up.
std::unique_ptr<Boundary> make_copy(Group& group);
// g: parts of y [T, d] -> their sum, the same on all ranks. Backward: dy.
std::unique_ptr<Boundary> make_sum(Group& group);

// Own rows [T / n, d] -> all rows [T, d], of which every rank then works on all. Backward: parts of dx are added up,
// and a rank keeps its rows.
std::unique_ptr<Boundary> make_gather_rows(Group& group);
// Parts of y [T, d] -> own rows [T / n, d] of their sum. Backward: all rows of dy.
std::unique_ptr<Boundary> make_scatter_sum(Group& group);

// x [T, d] the same on all ranks -> own rows [T / n, d]. Backward: all rows of dx.
std::unique_ptr<Boundary> make_take_rows(Group& group);
// Own rows [T / n, d] -> all rows [T, d], the same on all ranks. Backward: own rows of dy.
std::unique_ptr<Boundary> make_join_rows(Group& group);

}  // namespace orthant::tensor
