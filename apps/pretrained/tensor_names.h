// Where each of our parameters lies in a published model's files.
#pragma once

#include <orthant/settings.h>
#include <orthant/tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "apps/pretrained/family.h"

namespace orthant {

// How the experts' matrices are stored.
enum class ExpertForm {
  each,  // a tensor for each matrix of each expert
  // Of a layer: experts.gate_up_proj [E, 2 f, d], gate above up, and experts.down_proj [E, d, f]. gpt-oss has no other
  // form and turns them: [E, d, 2 f], gate and up in turns, and [E, f, d]; with gate_up_proj_bias [E, 2 f] and
  // down_proj_bias [E, d].
  packed,
  // gpt-oss as it is published: gate_up_proj_blocks [E, 2 f, d / 32, 16] and down_proj_blocks [E, d, f / 32, 16], two
  // elements a byte, with _scales; the biases as above. Read, and not written.
  mxfp4
};

// A tensor of theirs, and those of its elements that are one of our tensors.
struct TensorPlace {
  std::string ours;                 // a parameter, or the state of a gate
  std::vector<std::int64_t> shape;  // of ours
  std::string theirs;
  std::vector<std::int64_t> sizes;  // of theirs, outermost first
  std::int64_t begin = 0;           // of ours in theirs, elements
  // How far apart our rows, and our columns, lie in theirs; 0: ours is a run of theirs in the same order.
  std::int64_t row_step = 0, column_step = 0;
  std::int64_t elements() const;  // of ours
  bool in_order() const { return row_step == 0; }
  // Of element i of ours, counted from `begin`; and how many of theirs reach from our first one to our last.
  std::int64_t at(std::int64_t i) const;
  std::int64_t span() const { return at(elements() - 1) + 1; }
  Shape our_shape() const;
};

// Of every parameter in the table's order, then of every gate's state. settings: of a model of this family.
std::vector<TensorPlace> tensor_places(const Family& family, const Settings& settings, ExpertForm form);

// Of tensors that such a model stores again with each depth of multi-token prediction: whose copy each is (theirs, name
// of the copy). None where the model has no depth.
std::vector<std::pair<std::string, std::string>> mtp_copies(const Family& family, const Settings& settings);

// A tensor's name by which one tells that the experts are packed; empty for dense families.
std::string packed_name(const Family& family, const Settings& settings);

}  // namespace orthant
