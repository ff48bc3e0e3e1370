#include "cut.h"

#include <algorithm>
#include <limits>

namespace orthant::pipeline {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

// Dynamic programming over (pieces so far, layers so far): the best way to join the costs of pieces, none above
// `limit`. join(total of the pieces before, cost of this piece).
template <class Join>
std::vector<int> best_cut(const std::vector<double>& up_to, int pieces, double limit, Join join) {
  const std::size_t n = up_to.size() - 1, k = static_cast<std::size_t>(pieces);
  std::vector<std::vector<double>> best(k + 1, std::vector<double>(n + 1, never));
  std::vector<std::vector<int>> from(k + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  for (std::size_t p = 1; p <= k; ++p) {
    for (std::size_t end = p; end <= n; ++end) {
      for (std::size_t begin = p - 1; begin < end; ++begin) {
        const double piece = up_to[end] - up_to[begin];
        const double total = best[p - 1][begin] == never || piece > limit ? never : join(best[p - 1][begin], piece);
        if (total < best[p][end]) {
          best[p][end] = total;
          from[p][end] = static_cast<int>(begin);
        }
      }
    }
  }
  std::vector<int> cut = {static_cast<int>(n)};
  for (std::size_t p = k; p > 0; --p) {
    cut.push_back(from[p][cut.back()]);
  }
  std::reverse(cut.begin(), cut.end());
  return cut;
}

}  // namespace

std::vector<int> cut_evenly(std::span<const double> cost, int pieces) {
  std::vector<double> up_to = {0};
  for (double c : cost) {
    up_to.push_back(up_to.back() + c);
  }
  const std::vector<int> smallest =
      best_cut(up_to, pieces, never, [](double before, double piece) { return std::max(before, piece); });
  double limit = 0;
  for (std::size_t i = 0; i + 1 < smallest.size(); ++i) {
    limit = std::max(limit, up_to[smallest[i + 1]] - up_to[smallest[i]]);
  }
  return best_cut(up_to, pieces, limit, [](double before, double piece) { return before + piece * piece; });
}

}  // namespace orthant::pipeline
