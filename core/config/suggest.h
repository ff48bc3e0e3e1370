// Did you mean: the known name nearest to a misspelt one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `known` when it is near enough to be what was meant (a third of its length, at least one edit);
// the first one among equals.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace orthant
