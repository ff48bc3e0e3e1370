// Cuts of a chain of layers against an exhaustive search.
#include "plugins/pipeline/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

namespace orthant::pipeline::cut_test {
namespace {

struct Quality {
  double largest = 0, squares = 0;
};

Quality quality_of(const std::vector<double>& cost, const std::vector<int>& cut) {
  Quality q;
  for (std::size_t i = 0; i + 1 < cut.size(); ++i) {
    const double piece = std::accumulate(cost.begin() + cut[i], cost.begin() + cut[i + 1], 0.0);
    q.largest = std::max(q.largest, piece);
    q.squares += piece * piece;
  }
  return q;
}

// Over every subset of places to cut at.
Quality best_of_all(const std::vector<double>& cost, int pieces) {
  const int n = static_cast<int>(cost.size());
  Quality best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (std::uint32_t places = 0; places < (std::uint32_t{1} << (n - 1)); ++places) {
    std::vector<int> cut = {0};
    for (int i = 1; i < n; ++i) {
      if (((places >> (i - 1)) & 1) != 0) {
        cut.push_back(i);
      }
    }
    cut.push_back(n);
    if (static_cast<int>(cut.size()) != pieces + 1) {
      continue;
    }
    const Quality q = quality_of(cost, cut);
    if (q.largest < best.largest || (q.largest == best.largest && q.squares < best.squares)) {
      best = q;
    }
  }
  return best;
}

TEST(Cut, IsTheBestOfAll) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> weight(0, 9);
  for (int n = 1; n <= 10; ++n) {
    for (int pieces = 1; pieces <= n; ++pieces) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        std::vector<double> cost(n);
        std::generate(cost.begin(), cost.end(), [&] { return weight(random); });
        const std::vector<int> cut = cut_evenly(cost, pieces);
        ASSERT_EQ(cut.size(), static_cast<std::size_t>(pieces) + 1);
        EXPECT_EQ(cut.front(), 0);
        EXPECT_EQ(cut.back(), n);
        EXPECT_TRUE(std::adjacent_find(cut.begin(), cut.end(), std::greater_equal<int>()) == cut.end());
        const Quality found = quality_of(cost, cut), best = best_of_all(cost, pieces);
        EXPECT_DOUBLE_EQ(found.largest, best.largest);
        EXPECT_DOUBLE_EQ(found.squares, best.squares);
      }
    }
  }
}

TEST(Cut, EqualLayersDivideEvenly) {
  EXPECT_EQ(cut_evenly(std::vector<double>(12, 1.5), 4), (std::vector<int>{0, 3, 6, 9, 12}));
}

// A light embedding joins the first blocks, a heavy head stands alone.
TEST(Cut, WeighsEmbeddingAndHead) {
  EXPECT_EQ(cut_evenly(std::vector<double>{0.1, 1, 1, 1, 1, 1, 1, 3}, 3), (std::vector<int>{0, 4, 7, 8}));
}

TEST(Cut, OnePieceAndAsManyAsLayers) {
  const std::vector<double> cost = {3, 1, 2};
  EXPECT_EQ(cut_evenly(cost, 1), (std::vector<int>{0, 3}));
  EXPECT_EQ(cut_evenly(cost, 3), (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace orthant::pipeline::cut_test
