// The update of elements that are stored in fewer bits than it computes with: bf16 weights without a master, states in
// 8 bits (core/layers/state_storage.h), gradients in bf16.
//
// Some elements at a time become f32, the optimizer updates those, and what it leaves is rounded by chance to what is
// stored: always the same way for the same element in the same step, whatever the layout. A step that is not finite
// changes nothing here either, as numbers that are stored exactly are not changed by rounding.
#pragma once

#include <orthant/optimizer.h>

namespace orthant {

struct Settings;

// Whether elements of the group that are treated so are stored in fewer bits.
bool stored_in_fewer_bits(const ParamGroup& group, const Treatment& treatment);

// A gradient as an optimizer meets it: itself, or f32 numbers of the same memory.
Tensor in_f32(const Tensor& grad, Stream& home);

// Updates owned elements [begin, begin + count) on `home`, the stream on which the group's state lives. REQUIRES: their
// states are whole blocks, and the optimizer does not want them whole.
void update_low_memory(const ParamGroup& group, std::int64_t begin, std::int64_t count, const Treatment& treatment,
                       const UpdateStep& step, const Settings& settings, Stream& home);

}  // namespace orthant
