// What attention refuses whose heads share the width of the model among them.
#pragma once

#include <orthant/settings.h>

namespace orthant {

std::vector<Refusal> refusals_of_heads(const Settings& settings);

}  // namespace orthant
