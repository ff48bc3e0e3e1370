// Which rows of whole sequences a rank holds, against what the axes mean, token by token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/settings.h>

#include "router/routing_layout.h"

namespace orthant::routing_layout_test {
namespace {

// Where each of a rank's rows lies in the whole sequences.
std::vector<std::int64_t> rows_of(const std::vector<RowRun>& runs) {
  std::vector<std::int64_t> rows;
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.rows; ++i) {
      EXPECT_EQ(run.from + i, static_cast<std::int64_t>(rows.size())) << "runs are in order of a rank's own rows";
      rows.push_back(run.to + i);
    }
  }
  return rows;
}

struct World {
  explicit World(std::vector<AxisSpec> axes, std::int64_t length = 8) {
    for (const AxisSpec& axis : axes) {
      mesh.claim(axis);
    }
    mesh.freeze();
    mesh.place(0, nullptr);
    settings.data.sequence_length = length;
    settings.moe.experts = 4;
    plan = std::make_unique<Plan>(settings, mesh, nullptr);
  }
  Settings settings;
  Mesh mesh;
  std::unique_ptr<Plan> plan;
};

const AxisSpec slices{.name = "slices", .size = 2, .splits = {Dim::position}};
const AxisSpec ends{.name = "ends", .size = 2, .splits = {Dim::position}, .zigzag = true};
const AxisSpec routed{.name = "routed", .size = 2, .splits_in = {{Region::router, Dim::position}}};
const AxisSpec folded{
    .name = "folded", .size = 2, .splits_in = {{Region::router, Dim::position}, {Region::experts, Dim::position}}};

TEST(HeldRows, OfWholeSequences) {
  World w({{.name = "data", .size = 2, .splits = {Dim::batch}}});
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::router, 2, 1)),
              testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

TEST(HeldRows, OfSlicesOfSequences) {
  World w({slices});
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::router, 2, 1)), testing::ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
}

TEST(HeldRows, OfBothEnds) {
  World w({ends});
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::experts, 2, 0)), testing::ElementsAre(0, 1, 6, 7, 8, 9, 14, 15));
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::experts, 2, 1)), testing::ElementsAre(2, 3, 4, 5, 10, 11, 12, 13));
}

// The rows that slices leave are cut: of rank (slice 1, run r), run r of rows 4-7, 12-15 and 20-23.
TEST(HeldRows, OfRunsOfSlices) {
  World w({slices, routed});
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::router, 3, 2)), testing::ElementsAre(4, 5, 6, 7, 12, 13));
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::router, 3, 3)), testing::ElementsAre(14, 15, 20, 21, 22, 23));
  EXPECT_THAT(rows_of(held_rows(*w.plan, Region::experts, 1, 3)), testing::ElementsAre(4, 5, 6, 7));
}

TEST(HeldRows, ThatDoNotDivideAreRefused) {
  World w({routed}, 7);
  EXPECT_THROW(held_rows(*w.plan, Region::router, 1, 0), LayoutError);
}

// What a rank routes is among what it sends, on every rank, wherever the check passes.
TEST(RoutedRows, AreAmongThoseSent) {
  for (const auto& axes : std::vector<std::vector<AxisSpec>>{
           {slices, folded, routed}, {folded, ends}, {routed, slices}, {folded, routed}, {ends}}) {
    World w(axes);
    check_routed_rows(*w.plan);
    for (int rank = 0; rank < w.mesh.world_size(); ++rank) {
      EXPECT_THAT(rows_of(held_rows(*w.plan, Region::router, 2, rank)),
                  testing::IsSubsetOf(rows_of(held_rows(*w.plan, Region::experts, 2, rank))));
    }
  }
}

TEST(RoutedRows, ThatAreNotSentAreRefused) {
  // The run of a run that `routed` cut first is another one than that of all rows.
  for (const auto& axes : std::vector<std::vector<AxisSpec>>{{routed, folded}}) {
    World w(axes);
    EXPECT_THROW(check_routed_rows(*w.plan), LayoutError);
  }
  World w({{.name = "sent", .size = 2, .splits_in = {{Region::experts, Dim::position}}}});
  EXPECT_THROW(check_routed_rows(*w.plan), LayoutError);
  w.settings.moe.experts = 0;
  check_routed_rows(*w.plan);
}

}  // namespace
}  // namespace orthant::routing_layout_test
