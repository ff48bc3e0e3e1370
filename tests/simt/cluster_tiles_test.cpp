// Pairs of tiles for clusters of two blocks (experts/cuda/hopper/cluster_tiles.h): pure rules.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "experts/cuda/hopper/cluster_tiles.h"

namespace orthant::cuda::cluster_tiles_test {
namespace {

TEST(ClusterTiles, CoverEachTileOnceAndPadRowsToOneTile) {
  for (const int rows : {0, 1, 128, 129, 255, 256, 257, 384, 385, 5000}) {
    for (const int across : {1, 2, 3, 8}) {
      const Pairs pairs = Pairs::of(rows, across);
      std::map<std::pair<int, int>, int> seen;  // by row and column
      int idle = 0;
      for (int number = 0; number < pairs.count(); ++number) {
        const ClusterTile first = place_tile(3, {100, 100 + rows}, pairs, number, 0);
        const ClusterTile second = place_tile(3, {100, 100 + rows}, pairs, number, 1);
        EXPECT_EQ(first.shared, second.shared);
        EXPECT_EQ(first.expert, 3);
        EXPECT_EQ(first.begin, 100);
        EXPECT_EQ(second.count, rows);
        EXPECT_EQ(second.row - first.row, first.shared ? tile_rows : 0);
        EXPECT_EQ(second.column - first.column, first.shared ? 0 : 1);
        for (const ClusterTile& tile : {first, second}) {
          ++seen[{tile.row, tile.column}];
          idle += tile.column >= across ? 1 : 0;
        }
      }
      const int down = (rows + tile_rows - 1) / tile_rows;
      EXPECT_EQ(idle, down % 2 == 1 && across % 2 == 1 ? 1 : 0) << rows << " by " << across;
      EXPECT_EQ(std::ssize(seen), down * across + idle) << rows << " by " << across;
      for (const auto& [at, times] : seen) {
        EXPECT_EQ(times, 1);
        EXPECT_TRUE(at.first % tile_rows == 0 && at.first < rows && at.second <= across);
      }
    }
  }
}

}  // namespace
}  // namespace orthant::cuda::cluster_tiles_test
