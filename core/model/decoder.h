// The core's own kind of model: a decoder (core/arch/decoder.h has its chain).
#pragma once

#include <orthant/catalogue.h>

namespace orthant {

void add_model_kinds(Catalogue& catalogue);

}  // namespace orthant
