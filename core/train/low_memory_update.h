// The update of elements that are stored in fewer bits than it computes with: bf16 weights without a master, states in
// 8 bits (core/layers/state_storage.h), gradients in bf16.
//
// Some elements at a time become f32, the optimizer updates those, and what it leaves is rounded by chance to what is
// stored: always the same way for the same element in the same step, whatever the layout. A step that is not finite
// changes nothing here either, as numbers that are stored exactly are not changed by rounding.
#pragma once

#include <orthant/optimizer.h>
#include <orthant/param_group.h>

#include <cstdint>
#include <vector>

#include "core/layers/owned_pieces.h"

namespace orthant {

struct Settings;

// Whether elements of the group that are treated so are stored in fewer bits.
bool stored_in_fewer_bits(const ParamGroup& group, const Treatment& treatment);

// A gradient as an optimizer meets it: itself, or f32 numbers of the same memory.
Tensor in_f32(const Tensor& grad, Stream& home);

// Owned elements [begin, begin + count) as an optimizer meets them, on `home`, the stream on which the group's state
// lives: what is stored so is used as it is. REQUIRES: states with a code are whole blocks there.
class WideElements {
 public:
  WideElements(const ParamGroup& group, std::int64_t begin, std::int64_t count, const Settings& settings, Stream& home)
      : group_(group), begin_(begin), count_(count), settings_(settings), home_(home) {}

  // Once. A state that is not over elements is undefined.
  UpdateSlice widen(const Treatment& treatment);
  // What was done to them is stored: to the states alone, or to the weights too.
  void narrow_states(std::int64_t step);
  void narrow(std::int64_t step);

 private:
  // A state that has a code, where its elements begin, and their numbers.
  struct WideState {
    const ParamState* stored = nullptr;
    std::int64_t at = 0;
    Tensor numbers;
  };
  Tensor wide() const;
  template <class Work>
  void each_piece(Work work) const;

  const ParamGroup& group_;
  const std::int64_t begin_, count_;
  const Settings& settings_;
  Stream& home_;
  Tensor master_;  // f32 [count] where weights have no master
  std::vector<WideState> states_;
};

// Updates owned elements [begin, begin + count), some at a time. REQUIRES: as WideElements; the optimizer neither wants
// them whole nor measures them.
void update_low_memory(const ParamGroup& group, std::int64_t begin, std::int64_t count, const Treatment& treatment,
                       const UpdateStep& step, const Settings& settings, Stream& home);

}  // namespace orthant
