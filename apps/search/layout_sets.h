// A candidate as a configuration: as overrides, and as a whole file.
#pragma once

#include <string>
#include <vector>

#include "apps/search/candidate.h"
#include "core/config/config.h"

namespace orthant::search {

// "plugins.data.size=4", ...: what makes `config` this layout. The order of its tables stays what it is.
std::vector<std::string> sets_of(const Problem& problem, const Candidate& candidate, const Config& config);

// A file that `launch` takes as it is: all values of `config`, this layout's tables in its order. heading: lines of
// comment, without '#'.
std::string toml_of(const Problem& problem, const Candidate& candidate, const Config& config,
                    const std::vector<std::string>& heading);

}  // namespace orthant::search
