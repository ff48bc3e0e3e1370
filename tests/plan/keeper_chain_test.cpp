// What keepers may leave behind, and what is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <orthant/device.h>

#include <functional>
#include <mutex>

#include "core/layers/parameter_store.h"
#include "core/plan/keeper_chain.h"
#include "parallel/local/thread_world.h"
#include "tests/support/error_of.h"

namespace orthant::keeper_chain_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// A keeper whose adopt is the test's.
class Adopts final : public Keeper {
 public:
  using Adopt = std::function<void(ParamGroup&, Holding&)>;
  explicit Adopts(Adopt adopt, Sums sums = Sums::none) : adopt_(std::move(adopt)), sums_(sums) {}
  Sums sums() const override { return sums_; }
  void adopt(ParamGroup& group, Holding& holding) override { adopt_(group, holding); }
  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }

 private:
  Adopt adopt_;
  Sums sums_;
};

const Adopts::Adopt nothing = [](ParamGroup&, Holding&) {};
const Adopts::Adopt shards = [](ParamGroup& group, Holding& holding) {
  const std::int64_t ranks = group.sum->size();
  holding.owned_elements = (group.elements + ranks - 1) / ranks;
  holding.padded = holding.owned_elements * ranks;
  holding.owned_begin = holding.owned_elements * group.sum->rank();
  holding.owner = true;
};

// Why two ranks that sum gradients refuse keepers "a", "b", ... with these adopts; "no error" if they do not.
std::string refusal(const std::vector<Adopts::Adopt>& adopts) {
  std::string first;
  std::mutex mutex;
  run_threads(2, [&](Communicator& communicator) {
    const std::unique_ptr<Device> device = make_cpu_device(1);
    const std::unique_ptr<Stream> stream = device->make_main_stream();
    Settings settings;
    settings.model.layers = 1;
    Mesh mesh;
    mesh.claim({.name = "data", .size = 2, .splits = {Dim::batch}});
    mesh.freeze();
    mesh.place(communicator.rank(), &communicator);
    Plan plan(settings, mesh, device.get());
    for (std::size_t i = 0; i < adopts.size(); ++i) {
      plan.set_current_plugin(std::string(1, static_cast<char>('a' + i)));
      plan.chain(std::make_unique<Adopts>(adopts[i]));
    }
    plan.freeze();
    const std::string error = error_of([&] { ParamStore store(plan, *stream); });
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      first = error;
    }
  });
  return first;
}

TEST(KeeperChain, ShardsThatTileAreTaken) {
  EXPECT_EQ(refusal({shards}), "no error");
  EXPECT_EQ(refusal({nothing, shards, nothing}), "no error");
}

TEST(KeeperChain, TwoThatShareOutAreRefusedByName) {
  const auto whole_grad = [](ParamGroup&, Holding& holding) { holding.whole_grad = false; };
  EXPECT_THAT(refusal({shards, whole_grad}),
              AllOf(HasSubstr("plugins 'a' and 'b' both share out what ranks hold of"), HasSubstr("at most one can")));
}

TEST(KeeperChain, WhatIsImpossibleNamesThePlugin) {
  const auto beyond = [](ParamGroup&, Holding& holding) { holding.owned_elements = holding.padded + 1; };
  EXPECT_THAT(refusal({nothing, beyond}), HasSubstr("plugin 'b' gives 'embedding' an impossible holding"));
  const auto two_owners = [](ParamGroup&, Holding& holding) { holding.owner = true; };
  EXPECT_THAT(refusal({two_owners}), AllOf(HasSubstr("plugin 'a' shares out"), HasSubstr("have two owners")));
  const auto nobody = [](ParamGroup& group, Holding& holding) {
    holding.owned_elements = group.elements / 2;
    holding.owner = group.sum->rank() == 0;
  };
  EXPECT_THAT(refusal({nobody}), AllOf(HasSubstr("plugin 'a' shares out"), HasSubstr("have no owner")));
  const auto sizes = [](ParamGroup& group, Holding& holding) { holding.padded += group.sum->rank() + 1; };
  EXPECT_THAT(refusal({sizes}), HasSubstr("plugin 'a' pads"));
}

TEST(KeeperChain, TheSumIsThePlans) {
  const auto other_sum = [](ParamGroup& group, Holding&) { group.sum = nullptr; };
  EXPECT_THAT(refusal({other_sum}), HasSubstr("plugin 'a' changes the group 'embedding' in adopt"));
}

TEST(KeeperChain, WhatAHookThrowsNamesItsPlugin) {
  const auto lost = [](ParamGroup&, Holding&) { static_cast<void>(std::vector<int>().at(0)); };
  EXPECT_THAT(refusal({nothing, lost}), HasSubstr("plugin 'b', adopt: vector"));
}

TEST(KeeperChain, OneThatMustSumComesFirst) {
  KeeperChain chain;
  chain.add("a", std::make_unique<Adopts>(nothing, Sums::none));
  chain.add("b", std::make_unique<Adopts>(nothing, Sums::all));
  chain.add("c", std::make_unique<Adopts>(nothing, Sums::rest));
  chain.check_sums();
  chain.add("d", std::make_unique<Adopts>(nothing, Sums::all));
  EXPECT_THAT(error_of<ConfigError>([&] { chain.check_sums(); }), HasSubstr("put [plugins.d] before [plugins.b]"));
}

// --- workers

TEST(Workers, SumAndCountByThemselves) {
  Settings settings;
  Mesh mesh;
  mesh.claim({.name = "worker", .size = 2, .splits = {Dim::batch}, .independent = true});
  mesh.claim({.name = "data", .size = 2, .splits = {Dim::batch}});
  mesh.claim({.name = "expert", .size = 2, .splits = {Dim::expert}, .carve_of = {{Region::experts, Dim::batch}}});
  mesh.freeze();
  EXPECT_EQ(mesh.workers(), 2);
  for (int rank = 0; rank < 4; ++rank) {
    mesh.place(rank, nullptr);
    Plan plan(settings, mesh, nullptr);
    const std::vector<int> own = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    EXPECT_EQ(mesh.worker(), rank / 2);
    EXPECT_EQ(mesh.worker_members(), own);
    const ParamSpec dense{.name = "w", .global = {8}, .region = Region::attention};
    EXPECT_EQ(plan.sum_members(dense), own);
    EXPECT_EQ(plan.holders(dense), own);
    EXPECT_EQ(plan.part(Dim::batch, 8, Region::embedding).begin, 2 * rank) << "the batch is shared by all";
    const AxisId expert = 2;
    EXPECT_EQ(mesh.members(std::span<const AxisId>(&expert, 1), rank), own) << "experts are carved within a worker";
  }
}

TEST(Workers, ShareNothingOfTheModel) {
  Mesh mesh;
  EXPECT_THAT(error_of<ConfigError>([&] {
                mesh.claim({.name = "w", .size = 2, .splits = {Dim::batch, Dim::head}, .independent = true});
              }),
              HasSubstr("axis 'w' is independent and splits something else than the batch"));
}

}  // namespace
}  // namespace orthant::keeper_chain_test
