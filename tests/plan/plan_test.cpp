// What the core derives from the axes: parts, slices, who sums what, who holds what; and what a plan refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/plan.h>

#include <set>

#include "core/arch/links.h"
#include "core/layers/parameter_store.h"
#include "core/plan/default_seams.h"
#include "core/plan/keeper_chain.h"
#include "tests/support/error_of.h"

namespace orthant::plan_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// data 4, tensor 2, expert 2 carved from data: rank = 2 * data + tensor.
struct World {
  explicit World(int rank) {
    data = mesh.claim({.name = "data", .size = 4, .splits = {Dim::batch}});
    tensor = mesh.claim({.name = "tensor", .size = 2, .splits = {Dim::head, Dim::ffn, Dim::vocab}});
    expert = mesh.claim({.name = "expert",
                         .size = 2,
                         .splits = {Dim::expert},
                         .carve_of = {{Region::experts, Dim::batch}, {Region::experts, Dim::position}}});
    mesh.freeze();
    mesh.place(rank, nullptr);
    settings.moe.experts = 6;
    plan = std::make_unique<Plan>(settings, mesh, nullptr);
  }
  Settings settings;
  Mesh mesh;
  AxisId data, tensor, expert;
  std::unique_ptr<Plan> plan;
};

const ParamSpec norm = {.name = "norm", .global = {16}, .region = Region::norm};
const ParamSpec up = {.name = "up", .global = {32, 16}, .region = Region::ffn, .split = {Dim::ffn, std::nullopt}};
const ParamSpec query = {
    .name = "q", .global = {24, 16}, .region = Region::attention, .split = {Dim::head, std::nullopt}, .units = {4, 0}};
const ParamSpec output = {
    .name = "o", .global = {16, 24}, .region = Region::attention, .split = {std::nullopt, Dim::head}, .units = {0, 4}};
ParamSpec expert_weight(int number) {
  return {.name = fmt::format("expert {}", number),
          .global = {32, 16},
          .region = Region::experts,
          .split = {Dim::ffn, std::nullopt},
          .expert = number};
}

TEST(Plan, PartsOfADim) {
  for (int rank = 0; rank < 8; ++rank) {
    const World w(rank);
    const Range batch = w.plan->part(Dim::batch, 12, Region::embedding);
    EXPECT_EQ(batch.begin, rank / 2 * 3);
    EXPECT_EQ(batch.count, 3);
    const Range head = w.plan->part(Dim::head, 6, Region::attention);
    EXPECT_EQ(head.begin, rank % 2 * 3);
    EXPECT_EQ(head.count, 3);
    const Range position = w.plan->part(Dim::position, 7, Region::attention);
    EXPECT_EQ(position.begin, 0);
    EXPECT_EQ(position.count, 7);
    const Range experts = w.plan->part(Dim::expert, 6, Region::experts);
    EXPECT_EQ(experts.begin, rank / 2 % 2 * 3);
    EXPECT_EQ(experts.count, 3);
  }
}

// Two axes along one dim: the outer one cuts first.
TEST(Plan, PartsOfADimWithTwoAxes) {
  Settings settings;
  std::set<std::int64_t> begins;
  for (int rank = 0; rank < 4; ++rank) {
    Mesh mesh;
    mesh.claim({.name = "a", .size = 2, .splits = {Dim::batch}});
    mesh.claim({.name = "b", .size = 2, .splits = {Dim::batch}});
    mesh.freeze();
    mesh.place(rank, nullptr);
    const Plan plan(settings, mesh, nullptr);
    const Range range = plan.part(Dim::batch, 8, Region::embedding);
    EXPECT_EQ(range.begin, 2 * rank);
    EXPECT_EQ(range.count, 2);
  }
}

TEST(Plan, PartsThatDoNotDivideAreRefused) {
  const World w(0);
  try {
    w.plan->part(Dim::batch, 6, Region::embedding);
    FAIL() << "6 sequences were divided among 4 ranks";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("6 units of dim 'batch'"), HasSubstr("4 ranks of axis 'data'")));
  }
}

TEST(Plan, GradientsAreSummedOverTheRanksThatSplitTokens) {
  const World w(5);  // data 2, tensor 1, expert 0
  EXPECT_THAT(w.plan->sum_members(norm), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(w.plan->sum_members(up), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(w.plan->sum_members(expert_weight(0)), ElementsAre(1, 5));
  const World other(3);  // data 1, tensor 1, expert 1
  EXPECT_THAT(other.plan->sum_members(expert_weight(4)), ElementsAre(3, 7));
}

TEST(Plan, HoldersOfASlice) {
  const World w(5);
  EXPECT_THAT(w.plan->holders(norm), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(w.plan->holders(up), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(w.plan->holders(expert_weight(0)), ElementsAre(1, 5));
}

TEST(Plan, SlicesOfParameters) {
  const World w(5);
  auto place = [&](const ParamSpec& spec) {
    Param p{.spec = spec};
    EXPECT_TRUE(w.plan->place(p)) << spec.name;
    return std::vector<std::int64_t>{p.offset[0], p.offset[1], p.size[0], p.size[1]};
  };
  EXPECT_THAT(place(norm), ElementsAre(0, 0, 16, 1));
  EXPECT_THAT(place(up), ElementsAre(16, 0, 16, 16));
  EXPECT_THAT(place(query), ElementsAre(12, 0, 12, 16)) << "whole heads: two of four, six channels each";
  EXPECT_THAT(place(output), ElementsAre(0, 12, 16, 12));
  EXPECT_THAT(place(expert_weight(2)), ElementsAre(16, 0, 16, 16));
  Param elsewhere{.spec = expert_weight(3)};
  EXPECT_FALSE(w.plan->place(elsewhere)) << "expert 3 belongs to the other expert rank";
}

// Every element of every parameter is held by someone, counted once, and all holders of a slice agree.
TEST(Plan, EveryElementIsCountedOnce) {
  Settings settings;
  settings.model = {.layers = 3, .d_model = 16, .heads = 4, .kv_heads = 2, .d_ff = 32, .vocab_size = 20};
  settings.model.activation = Activation::swiglu;
  settings.moe = {.experts = 4, .every = 2, .top_k = 2, .shared_experts = 1, .d_expert = 8};
  std::int64_t whole = 0;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      whole += spec.global.elements();
    }
  }
  std::int64_t counted = 0;
  for (int rank = 0; rank < 8; ++rank) {
    World w(rank);
    Plan plan(settings, w.mesh, nullptr);
    plan.freeze();
    const ParamStore store(plan);
    for (const auto& group : store.groups()) {
      for (const Param& p : group->params) {
        counted += p.counted && group->owner ? p.elements() : 0;
      }
    }
  }
  EXPECT_EQ(counted, whole);
}

// A slice of a parameter starts with the numbers that stand there in the whole one, whichever dimension is cut.
TEST(Plan, SlicesStartAsPartsOfTheWhole) {
  Settings settings;
  settings.model = {.layers = 1, .d_model = 16, .heads = 4, .kv_heads = 2, .d_ff = 32, .vocab_size = 20};
  settings.moe = {.experts = 4, .top_k = 2, .shared_experts = 1, .d_expert = 8};
  const std::unique_ptr<Device> device = make_device("cpu", 1);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  auto values = [&](const ParamGroup& group, const Param& p) {
    std::vector<float> host(p.elements());
    stream->download(host.data(), group.master.slice(p.begin, {p.elements()}));
    return host;
  };
  Mesh alone;
  alone.freeze();
  alone.place(0, nullptr);
  Plan whole_plan(settings, alone, device.get());
  const ParamStore whole(whole_plan, *stream);
  int cut = 0;
  for (int rank = 0; rank < 8; ++rank) {
    World w(rank);
    Plan plan(settings, w.mesh, device.get());
    const ParamStore store(plan, *stream);
    for (const auto& group : store.groups()) {
      for (const Param& p : group->params) {
        const auto found = whole.find(p.spec.name);
        const std::vector<float> all = values(*found.group, *found.param), mine = values(*group, p);
        const std::int64_t columns = found.param->size[1];
        cut += p.elements() < found.param->elements() ? 1 : 0;
        for (std::int64_t i = 0; i < p.elements(); ++i) {
          const std::int64_t at = (p.offset[0] + i / p.size[1]) * columns + p.offset[1] + i % p.size[1];
          ASSERT_EQ(mine[i], all[at]) << p.spec.name << " on " << rank;
        }
      }
    }
  }
  EXPECT_GT(cut, 50);
}

// An axis may split a dim in one region only (Megatron's sequence parallelism splits positions inside norms).
TEST(Plan, SplitInOneRegion) {
  Mesh mesh;
  const AxisId data = mesh.claim({.name = "data", .size = 4, .splits = {Dim::batch}});
  const AxisId tensor = mesh.claim({.name = "tensor",
                                    .size = 2,
                                    .splits = {Dim::ffn},
                                    .joins_in = {{Region::experts, Dim::ffn}},
                                    .splits_in = {{Region::norm, Dim::position}, {Region::experts, Dim::position}}});
  const AxisId expert = mesh.claim({.name = "expert",
                                    .size = 8,
                                    .splits = {Dim::expert},
                                    .carve_of = {{Region::experts, Dim::batch}, {Region::experts, Dim::position}}});
  mesh.freeze();
  mesh.place(5, nullptr);
  Settings settings;
  settings.moe.experts = 16;
  Plan plan(settings, mesh, nullptr);
  EXPECT_THAT(plan.axes_of(Dim::position, Region::norm), ElementsAre(tensor));
  EXPECT_THAT(plan.axes_of(Dim::position, Region::ffn), IsEmpty());
  EXPECT_EQ(plan.rows(Region::norm, 10).begin, 5);
  EXPECT_EQ(plan.rows(Region::ffn, 10).count, 10);
  EXPECT_THAT(plan.sum_members(norm), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)) << "its tokens are split by tensor too";
  EXPECT_THAT(plan.sum_members(up), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(mesh.coordinate(expert), 5) << "carved from both, which split tokens where experts are";
  EXPECT_THAT(plan.sum_members(expert_weight(10)), ElementsAre(5));
  Param whole{.spec = expert_weight(10)};
  EXPECT_TRUE(plan.place(whole));
  EXPECT_EQ(whole.size[0], 32) << "not split by tensor in this region";
  EXPECT_EQ(mesh.coordinate(data), 2);
}

// Where keys and values have fewer heads than there are ranks, neighbours hold the same head and sum its gradient.
TEST(Plan, RepeatedHeads) {
  ParamSpec key = query;
  key.units[0] = 2;
  key.repeats = true;
  for (int rank = 0; rank < 8; ++rank) {
    Mesh mesh;
    mesh.claim({.name = "data", .size = 2, .splits = {Dim::batch}});
    mesh.claim({.name = "tensor", .size = 4, .splits = {Dim::head}});
    mesh.freeze();
    mesh.place(rank, nullptr);
    const Settings settings;
    const Plan plan(settings, mesh, nullptr);
    Param p{.spec = key};
    ASSERT_TRUE(plan.place(p));
    EXPECT_EQ(p.offset[0], rank % 4 / 2 * 12);
    EXPECT_EQ(p.size[0], 12);
    const int first = rank % 4 / 2 * 2;
    EXPECT_THAT(plan.sum_members(key), ElementsAre(first, first + 1, first + 4, first + 5));
    EXPECT_THAT(plan.holders(key), ElementsAre(first, first + 1, first + 4, first + 5));
  }
  Mesh mesh;
  mesh.claim({.name = "tensor", .size = 3, .splits = {Dim::head}});
  mesh.freeze();
  mesh.place(0, nullptr);
  const Settings settings;
  const Plan plan(settings, mesh, nullptr);
  EXPECT_THROW(plan.sum_members(key), LayoutError) << "two heads and three ranks";
}

// Slices of sequences: nested, and balanced for causal attention.
TEST(Plan, Positions) {
  auto held = [](int rank, bool zigzag) {
    Mesh mesh;
    mesh.claim({.name = "outer", .size = 2, .splits = {Dim::position}, .zigzag = zigzag});
    mesh.claim(
        {.name = "inner", .size = 2, .splits = {Dim::position}, .joins_in = {{Region::attention_core, Dim::position}}});
    mesh.freeze();
    mesh.place(rank, nullptr);
    Settings settings;
    settings.data.sequence_length = 16;
    const Plan plan(settings, mesh, nullptr);
    std::vector<int> all;
    for (Region region : {Region::norm, Region::attention_core}) {
      for (const Range& run : plan.positions(region, rank)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          all.push_back(static_cast<int>(run.begin + i));
        }
      }
      all.push_back(-1);
    }
    return all;
  };
  EXPECT_THAT(held(1, false), ElementsAre(4, 5, 6, 7, -1, 0, 1, 2, 3, 4, 5, 6, 7, -1));
  EXPECT_THAT(held(1, true), ElementsAre(12, 13, 14, 15, -1, 0, 1, 2, 3, 12, 13, 14, 15, -1));
  EXPECT_THAT(held(2, true), ElementsAre(4, 5, 6, 7, -1, 4, 5, 6, 7, 8, 9, 10, 11, -1));
}

// --- seams

struct Nothing final : Boundary {
  Tensor forward(Tensor x, Stream&) override { return x; }
  Tensor backward(Tensor dy, Stream&) override { return dy; }
};
struct NoExchange final : TokenExchange {
  ExchangePlan plan(const Tensor&, Stream&, const std::function<void()>&) override { return {}; }
  void to_experts(const Tensor&, const Tensor&, const ExchangePlan&, int, Stream&) override {}
  void to_tokens(const Tensor&, const Tensor&, const ExchangePlan&, int, Stream&) override {}
};

TEST(Plan, TwoExchangesAreRefusedByName) {
  World w(0);
  w.plan->set_current_plugin("expert");
  w.plan->bind(std::make_unique<NoExchange>());
  w.plan->set_current_plugin("mine");
  EXPECT_THAT(error_of<ConfigError>([&] { w.plan->bind(std::make_unique<NoExchange>()); }),
              AllOf(HasSubstr("'mine'"), HasSubstr("expert"), HasSubstr("token exchange")));
}

TEST(Plan, NullSeamsAreRefusedByName) {
  World w(0);
  w.plan->set_current_plugin("mine");
  const auto said = [&](auto bind) { return error_of<ConfigError>(bind); };
  EXPECT_THAT(said([&] { w.plan->bind(std::unique_ptr<TokenExchange>()); }),
              HasSubstr("plugin 'mine' gives a null token exchange"));
  EXPECT_THAT(said([&] { w.plan->chain(std::unique_ptr<Keeper>()); }), HasSubstr("'mine' gives a null keeper"));
  EXPECT_THAT(said([&] { w.plan->chain(std::unique_ptr<Stash>()); }), HasSubstr("'mine' gives a null stash"));
}

TEST(Plan, TwoSchedulesAreRefused) {
  World w(0);
  w.plan->set_current_plugin("pipeline");
  w.plan->bind(make_single_stage_schedule());
  EXPECT_THAT(error_of<ConfigError>([&] { w.plan->bind(make_single_stage_schedule()); }), HasSubstr("second schedule"));
}

TEST(Plan, TwoBoundariesOfOneSiteMustMoveDifferentDims) {
  World w(0);
  const Site site{Region::attention, Side::enter};
  w.plan->set_current_plugin("tensor");
  w.plan->bind(site, std::make_unique<Nothing>(), Dim::head);
  w.plan->set_current_plugin("sequence");
  w.plan->bind(site, std::make_unique<Nothing>(), Dim::position);
  w.plan->bind({Region::attention, Side::leave}, std::make_unique<Nothing>(), Dim::head);
  EXPECT_THAT(error_of<ConfigError>([&] { w.plan->bind(site, std::make_unique<Nothing>(), Dim::head); }),
              AllOf(HasSubstr("'tensor' and 'sequence'"), HasSubstr("head"), HasSubstr("entering attention")));
}

TEST(Plan, SeamsThatNobodyBindsAreFilled) {
  World w(0);
  EXPECT_EQ(w.plan->exchange(), nullptr);
  w.plan->freeze();
  EXPECT_EQ(w.plan->exchange(), nullptr) << "without one, every expert is local";
  EXPECT_TRUE(w.plan->keepers().empty());
  std::vector<Op> ops;
  for (const Instr& instr : w.plan->schedule().steps(0, 1, 2)) {
    ops.push_back(instr.op);
  }
  EXPECT_THAT(ops,
              ElementsAre(Op::load, Op::forward, Op::backward, Op::load, Op::forward, Op::backward, Op::finish_grads));
  EXPECT_THAT(w.plan->schedule().cut(std::vector<double>(5, 1), 1), ElementsAre(0, 5));
}

TEST(Plan, TellsPeopleWhoDoesWhat) {
  World w(0);
  w.plan->set_current_plugin("expert");
  w.plan->bind(std::make_unique<NoExchange>());
  w.plan->freeze();
  const std::string text = w.plan->to_string();
  EXPECT_THAT(text, HasSubstr("world size 8"));
  EXPECT_THAT(text, HasSubstr("group [0 2 4 6]"));  // data
  EXPECT_THAT(text, HasSubstr("group [6 7]"));      // tensor
  EXPECT_THAT(text, HasSubstr("group [5 7]"));      // expert
  EXPECT_THAT(text, HasSubstr("(carved)"));
  EXPECT_THAT(text, HasSubstr("expert: token exchange"));
}

// The groups of one purpose and list are made once.
TEST(Plan, GroupsAreMadeOnce) {
  World w(0);
  Group& first = w.plan->group("sum", {0, 2});
  EXPECT_EQ(&w.plan->group("sum", {0, 2}), &first);
  EXPECT_NE(&w.plan->group("other", {0, 2}), &first);
  EXPECT_THROW(w.plan->device(), Error) << "a dry run has none";
}

}  // namespace
}  // namespace orthant::plan_test
