#include "core/config/suggest.h"

#include <algorithm>

namespace orthant {

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t columns = b.size() + 1;
  std::vector<int> before(columns), above(columns), row(columns);  // rows i-2, i-1 and i
  for (std::size_t j = 0; j < columns; ++j) {
    row[j] = static_cast<int>(j);
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < columns; ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& known) {
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : known) {
    const std::size_t longer = std::max(candidate.size(), name.size());
    const std::size_t limit = std::max<std::size_t>(1, longer / 3);
    if (longer - std::min(candidate.size(), name.size()) > limit) {
      continue;  // also keeps hostile, endless names cheap
    }
    const int distance = edit_distance(name, candidate);
    if (distance <= static_cast<int>(limit) && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace orthant
