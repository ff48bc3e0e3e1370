// Where each of our parameters lies in a published model's files.
#pragma once

#include <orthant/settings.h>
#include <orthant/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/pretrained/family.h"

namespace orthant {

// How the experts' matrices are stored.
enum class ExpertForm {
  each,   // a tensor for each matrix of each expert
  packed  // of a layer: experts.gate_up_proj [E, 2 f, d], gate above up, and experts.down_proj [E, d, f]
};

// A tensor of theirs, and the run of its elements that is one of our tensors, in the same order.
struct TensorPlace {
  std::string ours;                 // a parameter, or the state of a gate
  std::vector<std::int64_t> shape;  // of ours
  std::string theirs;
  std::vector<std::int64_t> sizes;  // of theirs, outermost first
  std::int64_t begin = 0;           // of ours in theirs, elements
  std::int64_t elements() const;    // of ours
  Shape our_shape() const;
};

// Of every parameter in the table's order, then of every gate's state. settings: of a model of this family.
std::vector<TensorPlace> tensor_places(const Family& family, const Settings& settings, ExpertForm form);

// A tensor's name by which one tells that the experts are packed; empty for dense families.
std::string packed_name(const Family& family, const Settings& settings);

}  // namespace orthant
