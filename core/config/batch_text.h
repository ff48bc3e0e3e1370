// A batch that grows, for people.
#pragma once

#include <orthant/settings.h>

#include <string>

namespace orthant {

// "8 sequences a step, 16 after 200 steps, 32 after 500".
std::string batch_text(const BatchSettings& batch);

}  // namespace orthant
