// The fits of a study, from its card.
#pragma once

#include <cstdint>
#include <string>

#include "bench/study/card.h"

namespace orthant {

// The text of fits.json (bench/fit/study_fits.h) from the points that are done. Points of other layouts than the first
// one's are runs of the same models once more: they stay away.
// Errors: Error for losses that no law can be fitted to.
std::string fits_of(const StudyCard& card, std::int64_t resamples);

}  // namespace orthant
