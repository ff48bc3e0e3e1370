// Answers token by token: the encoder runs once for a source, and each block of the decoder keeps its keys and values
// of the source and of the tokens so far.
#pragma once

#include <memory>

#include <orthant/stepwise.h>

namespace orthant::encoder_decoder {

std::shared_ptr<const Stepwise> make_t5_stepwise();

}  // namespace orthant::encoder_decoder
