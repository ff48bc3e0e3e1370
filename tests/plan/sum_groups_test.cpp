// The groups that gradients are summed over: made by every rank in one order, whatever it holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/plan.h>

#include "core/dry_run/planning_communicator.h"
#include "core/layers/parameter_store.h"

namespace orthant::sum_groups_test {
namespace {

// Each layer a piece, the stages taking turns: with an embedding, two blocks and a head on three stages, the first one
// has the embedding and the head.
class OneLayerEach final : public Schedule {
 public:
  std::vector<int> cut(std::span<const double> cost, int) const override {
    std::vector<int> cut;
    for (int i = 0; i <= static_cast<int>(cost.size()); ++i) {
      cut.push_back(i);
    }
    return cut;
  }
  std::vector<Instr> steps(int, int, int) const override { return {}; }
};

// Writes down what sums it is told of.
class Listener final : public Keeper {
 public:
  explicit Listener(std::vector<std::vector<int>>& told) : told_(told) {}
  void sum_group(Mesh& mesh, Group& sum) override {
    told_.push_back(sum.members());
    mesh.group_of("of the keeper", {mesh.rank()});
  }
  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }
  void adopt(ParamGroup& group, Holding&) override {
    EXPECT_THAT(told_, testing::Contains(group.sum->members())) << group.name << " is adopted before its sum is known";
  }

 private:
  std::vector<std::vector<int>>& told_;
};

TEST(SumGroups, AreMadeInOneOrderOnEveryRank) {
  constexpr int data = 2, stages = 4;
  std::vector<std::string> first;
  for (int rank = 0; rank < data * stages; ++rank) {
    Settings settings;
    settings.model.layers = 2;
    settings.model.tie_embeddings = true;
    CollectiveRecord record;
    const auto communicator = make_planning_communicator(rank, data * stages, record);
    Mesh mesh;
    mesh.claim({.name = "data", .size = data, .splits = {Dim::batch}});
    mesh.claim({.name = "stages", .size = stages, .splits = {Dim::layer}});
    mesh.freeze();
    mesh.place(rank, communicator.get());
    std::vector<std::vector<int>> told;
    Plan plan(settings, mesh, nullptr);
    plan.bind(std::make_unique<OneLayerEach>());
    plan.chain(std::make_unique<Listener>(told));
    plan.freeze();
    const ParamStore store(plan);

    std::vector<std::string> names;
    for (const RecordedGroup& group : record.groups) {
      names.push_back(group.name);
    }
    if (rank == 0) {
      first = names;
    }
    EXPECT_EQ(names, first) << "rank " << rank;
    EXPECT_EQ(told.size(), 2u) << "tied embeddings are summed over both ends, the rest within a stage";
    const int stage = rank % stages;
    const bool end = stage == 0 || stage == stages - 1;
    EXPECT_EQ(store.holds("model.embed_tokens.weight"), end);
    for (const auto& group : store.groups()) {
      const bool tied = group->params[0].spec.name == "model.embed_tokens.weight";
      EXPECT_EQ(group->sum->size(), tied ? 2 * data : data) << group->name << " on rank " << rank;
      EXPECT_EQ(group->scattered, tied);
    }
  }
}

}  // namespace
}  // namespace orthant::sum_groups_test
