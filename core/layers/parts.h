// The parts of blocks that the core brings.
#pragma once

#include <orthant/catalogue.h>

namespace orthant {

void add_parts(Catalogue& catalogue);

}  // namespace orthant
