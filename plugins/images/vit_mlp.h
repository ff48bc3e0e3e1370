// FFN "vit_mlp": two matrices with biases around model.activation, as published ViTs have it. Its GELU is the one of
// tanh form.
#pragma once

#include <memory>

#include <orthant/part.h>

namespace orthant::images {

std::shared_ptr<const FfnPart> make_vit_mlp();

}  // namespace orthant::images
