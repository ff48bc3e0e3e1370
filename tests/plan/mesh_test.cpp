// Which ranks form which group: written out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/mesh.h>

#include <set>

#include "tests/support/error_of.h"

namespace orthant::mesh_test {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Ranks = std::vector<int>;

AxisSpec plain(const std::string& name, int size, Dim dim) {
  return {.name = name, .size = size, .splits = {dim}};
}
AxisSpec expert_axis(int size) {
  return {.name = "expert",
          .size = size,
          .splits = {Dim::expert},
          .carve_of = {{Region::experts, Dim::batch}, {Region::experts, Dim::position}}};
}

Ranks members(const Mesh& mesh, std::vector<AxisId> axes, int rank) {
  return mesh.members(axes, rank);
}

std::vector<int> coordinates(const Mesh& mesh, AxisId axis) {
  std::vector<int> all;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    all.push_back(mesh.coordinate(axis, rank));
  }
  return all;
}

TEST(Mesh, WithoutAxesIsOneRank) {
  Mesh mesh;
  mesh.freeze();
  EXPECT_EQ(mesh.world_size(), 1);
  mesh.place(0, nullptr);
  EXPECT_EQ(mesh.world_group("all").size(), 1);
}

TEST(Mesh, TheFirstAxisIsTheOuterOne) {
  Mesh mesh;
  const AxisId data = mesh.claim(plain("data", 2, Dim::batch));
  const AxisId tensor = mesh.claim(plain("tensor", 3, Dim::head));
  mesh.freeze();
  EXPECT_EQ(mesh.world_size(), 6);
  EXPECT_THAT(coordinates(mesh, data), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(coordinates(mesh, tensor), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(members(mesh, {data}, 4), ElementsAre(1, 4));
  EXPECT_THAT(members(mesh, {tensor}, 4), ElementsAre(3, 4, 5));
  EXPECT_THAT(members(mesh, {data, tensor}, 4), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(members(mesh, {}, 4), ElementsAre(4));
}

// Expert = 2 carved from data = 4: neighbours hold different experts.
// The grouping that Megatron-LM's documentation prints for 16 ranks with tensor 2, pipeline 4 and data 2.
TEST(Mesh, TheTextbookGroupingOfSixteenRanks) {
  Mesh mesh;
  const AxisId pipeline = mesh.claim(plain("pipeline", 4, Dim::layer));
  const AxisId data = mesh.claim(plain("data", 2, Dim::batch));
  const AxisId tensor = mesh.claim(plain("tensor", 2, Dim::ffn));
  mesh.freeze();
  mesh.place(0, nullptr);
  auto groups = [&](AxisId axis) {
    std::set<Ranks> found;
    for (int rank = 0; rank < 16; ++rank) {
      found.insert(members(mesh, {axis}, rank));
    }
    return found;
  };
  EXPECT_EQ(groups(tensor), (std::set<Ranks>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}}));
  EXPECT_EQ(groups(data), (std::set<Ranks>{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups(pipeline), (std::set<Ranks>{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
}

TEST(Mesh, CarvedAxisAddsNoRanks) {
  Mesh mesh;
  const AxisId data = mesh.claim(plain("data", 4, Dim::batch));
  const AxisId expert = mesh.claim(expert_axis(2));
  mesh.freeze();
  EXPECT_EQ(mesh.world_size(), 4);
  EXPECT_THAT(coordinates(mesh, expert), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(coordinates(mesh, data), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(members(mesh, {expert}, 0), ElementsAre(0, 1));
  EXPECT_THAT(members(mesh, {expert}, 1), ElementsAre(0, 1));
  EXPECT_THAT(members(mesh, {expert}, 2), ElementsAre(2, 3));
  EXPECT_THAT(members(mesh, {expert}, 3), ElementsAre(2, 3));
  // Those that differ along data and hold the same experts.
  const std::vector<AxisId> vary = {data}, keep = {expert};
  EXPECT_THAT(mesh.members_keeping(vary, keep, 0), ElementsAre(0, 2));
  EXPECT_THAT(mesh.members_keeping(vary, keep, 3), ElementsAre(1, 3));
}

// data = 2 (outer) x sequence = 2: both split tokens, so expert = 2 lies along sequence and expert = 4 along both.
TEST(Mesh, CarvedFromTwoAxes) {
  for (int size : {2, 4}) {
    Mesh mesh;
    const AxisId data = mesh.claim(plain("data", 2, Dim::batch));
    const AxisId sequence = mesh.claim(plain("sequence", 2, Dim::position));
    const AxisId expert = mesh.claim(expert_axis(size));
    mesh.freeze();
    EXPECT_EQ(mesh.world_size(), 4);
    const std::vector<AxisId> vary = {data, sequence}, keep = {expert};
    if (size == 2) {
      EXPECT_THAT(coordinates(mesh, expert), ElementsAre(0, 1, 0, 1));
      EXPECT_THAT(members(mesh, {expert}, 3), ElementsAre(2, 3));
      EXPECT_THAT(mesh.members_keeping(vary, keep, 3), ElementsAre(1, 3));
    } else {
      EXPECT_THAT(coordinates(mesh, expert), ElementsAre(0, 1, 2, 3));
      EXPECT_THAT(members(mesh, {expert}, 3), ElementsAre(0, 1, 2, 3));
      EXPECT_THAT(mesh.members_keeping(vary, keep, 3), ElementsAre(3));
    }
  }
}

// A tensor axis between data (outer) and the innermost rank does not disturb the carving: with data = 4 and
// tensor = 2, rank = 2 * data + tensor, and experts travel between ranks of one tensor coordinate.
TEST(Mesh, CarvedAroundAnAxisThatSplitsNoTokens) {
  Mesh mesh;
  const AxisId data = mesh.claim(plain("data", 4, Dim::batch));
  const AxisId tensor = mesh.claim(plain("tensor", 2, Dim::ffn));
  const AxisId expert = mesh.claim(expert_axis(2));
  mesh.freeze();
  EXPECT_EQ(mesh.world_size(), 8);
  EXPECT_THAT(coordinates(mesh, expert), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(members(mesh, {expert}, 0), ElementsAre(0, 2));
  EXPECT_THAT(members(mesh, {expert}, 5), ElementsAre(5, 7));
  const std::vector<AxisId> vary = {data}, keep = {expert};
  EXPECT_THAT(mesh.members_keeping(vary, keep, 0), ElementsAre(0, 4));
  EXPECT_THAT(mesh.members_keeping(vary, keep, 7), ElementsAre(3, 7));
  (void)tensor;
}

// Every grouping splits the world into equal parts that agree about who belongs to them.
TEST(Mesh, GroupsPartitionTheWorld) {
  Mesh mesh;
  mesh.claim(plain("pipeline", 2, Dim::layer));
  mesh.claim(plain("data", 4, Dim::batch));
  mesh.claim(plain("sequence", 3, Dim::position));
  mesh.claim(expert_axis(6));
  mesh.freeze();
  EXPECT_EQ(mesh.world_size(), 24);
  for (const std::vector<AxisId>& axes : std::vector<std::vector<AxisId>>{{0}, {1}, {2}, {3}, {0, 2}, {1, 2}}) {
    std::size_t expected = 1;
    for (AxisId axis : axes) {
      expected *= static_cast<std::size_t>(mesh.axes()[axis].size);
    }
    for (int rank = 0; rank < 24; ++rank) {
      const Ranks group = members(mesh, axes, rank);
      EXPECT_EQ(group.size(), expected);
      EXPECT_THAT(group, testing::Contains(rank));
      for (int other : group) {
        EXPECT_EQ(members(mesh, axes, other), group);
      }
    }
  }
}

TEST(Mesh, RefusesSizesThatDoNotDivide) {
  Mesh mesh;
  mesh.claim(plain("data", 4, Dim::batch));
  mesh.claim(expert_axis(3));
  EXPECT_THAT(error_of<ConfigError>([&] { mesh.freeze(); }),
              testing::AllOf(HasSubstr("'expert' of size 3"), HasSubstr("4 ranks"), HasSubstr("axis data")));
}

TEST(Mesh, RefusesToCarveFromNothing) {
  Mesh mesh;
  mesh.claim(plain("tensor", 2, Dim::head));
  mesh.claim(expert_axis(2));
  EXPECT_THAT(error_of<ConfigError>([&] { mesh.freeze(); }), HasSubstr("no axis splits what it is carved from"));
}

TEST(Mesh, RefusesAnAxisClaimedTwice) {
  Mesh mesh;
  mesh.claim(plain("data", 4, Dim::batch));
  EXPECT_THAT(error_of<ConfigError>([&] { mesh.claim(plain("data", 2, Dim::batch)); }),
              HasSubstr("'data' is claimed twice"));
}

TEST(Mesh, RefusesAnAxisWithoutANameOrThatIsNotThere) {
  Mesh mesh;
  EXPECT_THAT(error_of<ConfigError>([&] { mesh.claim(plain("", 2, Dim::batch)); }), HasSubstr("without a name"));
  const AxisId data = mesh.claim(plain("data", 2, Dim::batch)), none = data + 1;
  mesh.freeze();
  EXPECT_THAT(error_of<Error>([&] { mesh.group(std::span<const AxisId>(&none, 1)); }), HasSubstr("there is no axis 1"));
}

TEST(Mesh, RefusesASizeBelowOne) {
  Mesh mesh;
  EXPECT_THAT(error_of<ConfigError>([&] { mesh.claim(plain("data", 0, Dim::batch)); }), HasSubstr("size 0"));
}

TEST(Mesh, RefusesMoreRanksThanCanBeNumbered) {
  Mesh mesh;
  mesh.claim(plain("data", 65536, Dim::batch));
  mesh.claim(plain("tensor", 65536, Dim::head));  // together 2^32, which an int would take for 0
  EXPECT_THAT(error_of<ConfigError>([&] { mesh.freeze(); }),
              testing::AllOf(HasSubstr("'tensor'"), HasSubstr("4294967296 ranks")));
}

TEST(Mesh, GroupOfADryRunKnowsItsMembersAndDoesNotCommunicate) {
  Mesh mesh;
  const AxisId data = mesh.claim(plain("data", 4, Dim::batch));
  mesh.freeze();
  mesh.place(2, nullptr);
  Group& group = mesh.group(data);
  EXPECT_EQ(group.size(), 4);
  EXPECT_EQ(group.rank(), 2);
}

TEST(Mesh, RefusesRanksOutsideTheWorld) {
  Mesh mesh;
  mesh.claim(plain("data", 2, Dim::batch));
  mesh.freeze();
  EXPECT_THROW(mesh.place(2, nullptr), Error);
  EXPECT_THROW(mesh.claim(plain("late", 1, Dim::head)), Error);
}

}  // namespace
}  // namespace orthant::mesh_test
