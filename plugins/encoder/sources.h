// Where an encoder's texts come from: sources "masked" and "labelled".
#pragma once

#include <memory>

#include <orthant/source.h>

namespace orthant::encoder {

// Texts with tokens hidden, which are the labels (masking.h).
std::shared_ptr<const Source> make_masked_source();
// Texts with a class each, or one for each token, from JSON lines.
std::shared_ptr<const Source> make_labelled_source();

}  // namespace orthant::encoder
