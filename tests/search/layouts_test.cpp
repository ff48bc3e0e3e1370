// The search's rules against the program's own: a layout is legal where the program loads it, and only there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <random>

#include "apps/search/executor.h"
#include "apps/search/layout_sets.h"
#include "apps/search/problem_reader.h"
#include "apps/search/space.h"
#include "core/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::search_test {
namespace {

using namespace search;
using testing::HasSubstr;

struct Model {
  const char* name;
  std::vector<std::string> sets;
};

const Model models[] = {
    {"mixture", {"model.layers=3", "model.kv_heads=1", "batch.sequences=8"}},
    {"dense", {"moe.experts=0", "model.layers=4", "model.heads=4", "batch.sequences=12", "model.d_ff=48"}},
    {"latent",
     {"model.attention=\"latent\"", "model.kv_lora_rank=8", "model.qk_nope_head_dim=8", "model.qk_rope_head_dim=4",
      "model.v_head_dim=8", "moe.shared_experts=1", "moe.every=2", "batch.sequences=8"}},
    {"groups",
     {"moe.group_tokens=32", "model.heads=8", "model.kv_heads=2", "model.tie_embeddings=true", "batch.sequences=8",
      "model.vocab_size=264"}},
    {"grows", {"batch.sequences=4", "batch.grow_after=[2]", "batch.grow_to=[12]", "moe.expert_bias=true"}},
};

class Layouts : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    const std::string text = run_test::tiny_config({});
    folder_.write("c.toml", text.substr(0, text.find("[plugins.expert]")));
    folder_.write("machine.toml",
                  "name = \"small\"\ngeneration = \"small\"\nmemory_gb = 1\nmemory_gb_s = 10\n"
                  "[peak_tflops]\nfp32 = 0.1\n[[link]]\nranks = 2\ngb_s = 5\nlatency_us = 5\n"
                  "[[link]]\ngb_s = 1\nlatency_us = 20\n[host]\ngb_s = 5\nmemory_gb = 4\nmemory_gb_s = 10\n"
                  "[factors]\nproducts = 0.5\nmemory = 0.5\nlinks = 0.5\nnetwork = 0.5\nlaunch_us = 5\n");
    arguments_.file = folder_.path("c.toml").string();
    arguments_.overrides = GetParam().sets;
  }
  Config config() const { return load_config(arguments_.file, arguments_.overrides, keys_of_plugin, kinds_of_plugin); }
  Problem problem(int ranks) const {
    return read_problem({arguments_, folder_.path("machine.toml").string(), ranks, 0, ""}, config());
  }
  // Empty: the program loads it.
  std::string refused(const Problem& of, const Candidate& candidate) const {
    ConfigArguments with = arguments_;
    const std::vector<std::string> sets = sets_of(of, candidate, config());
    with.overrides.insert(with.overrides.end(), sets.begin(), sets.end());
    try {
      check_layout(load_config(with));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  run_test::ProgramFolder folder_;
  ConfigArguments arguments_;
};

constexpr std::array idle_choices = {"there is no",
                                     "there are no",
                                     "no rows travel",
                                     "there is nobody",
                                     "two levels need",
                                     "the schedule is for other",
                                     "layered accumulation saves"};

// One choice of a legal layout changed to any value that it may have somewhere.
Candidate changed(Candidate c, std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<int> values) { return values.begin()[random() % values.size()]; };
  switch (random() % 9) {
    case 0: c.micro_batch = one_of({1, 2, 3, 4, 8}); break;
    case 1: c.expert = one_of({1, 2, 3, 4, 8}); break;
    case 2: c.folded = !c.folded; break;
    case 3: c.sequence_parallel = !c.sequence_parallel; break;
    case 4: c.ulysses = !c.ulysses; break;
    case 5: std::swap(c.tensor, c.data); break;
    case 6: std::swap(c.sequence, c.pipeline); break;
    case 7: std::swap(c.tensor, c.sequence); break;
    default: c.travel = static_cast<Travel>(one_of({0, 1, 2, 3})); break;
  }
  return c;
}

TEST_P(Layouts, AreLegalWhereTheProgramLoadsThem) {
  std::mt19937 random(7);
  int taken = 0, not_taken = 0;
  for (const int ranks : {1, 4, 6, 8, 12}) {
    const Problem of = problem(ranks);
    std::vector<Candidate> legal;
    Leaves leaves(of);
    for (const Candidate& key : keys_of(of)) {
      for_each_node(of, key, [&](const Candidate& node) {
        for (const Leaf& leaf : leaves.of(node)) {
          legal.push_back(with(node, leaf));
        }
      });
    }
    for (int i = 0; i < 12 && !legal.empty(); ++i) {
      const Candidate one = legal[random() % legal.size()];
      EXPECT_EQ(refused(of, one), "") << text_of(one);
      const Candidate other = changed(one, random);
      const std::string why = refusal(of, other), program = refused(of, other);
      // What the program takes and the search does not: choices without an axis to make them, or that change nothing.
      const bool idle = std::any_of(idle_choices.begin(), idle_choices.end(),
                                    [&](const char* choice) { return why.starts_with(choice); });
      EXPECT_TRUE(why.empty() == program.empty() || idle)
          << text_of(other) << "\nsearch: " << why << "\nprogram: " << program;
      (why.empty() ? taken : not_taken) += 1;
    }
  }
  EXPECT_GE(taken, 5);
  EXPECT_GE(not_taken, 5);
}

TEST_P(Layouts, AreWrittenInTheOrderAndWithTheRanksThatTheySay) {
  const Problem of = problem(8);
  std::mt19937 random(11);
  const std::vector<Candidate> keys = keys_of(of);
  ASSERT_FALSE(keys.empty());
  for (int i = 0; i < 6; ++i) {
    std::vector<Candidate> nodes;
    for_each_node(of, keys[random() % keys.size()], [&](const Candidate& node) { nodes.push_back(node); });
    const Candidate one = nodes[random() % nodes.size()];
    const std::string file = folder_.path("found.toml").string();
    std::ofstream(file) << toml_of(of, one, config(), {"a layout"});
    const Config written = load_config(ConfigArguments{file, {}});
    Session session(written);
    EXPECT_EQ(session.world_size(), 8);
    // Strides of the mesh's axes are those that the model of time has.
    const cost::Layout layout = layout_of(of, one);
    for (AxisId axis = 0; axis < static_cast<AxisId>(session.mesh().axes().size()); ++axis) {
      const AxisSpec& spec = session.mesh().axes()[static_cast<std::size_t>(axis)];
      const std::vector<int> members = session.mesh().members(std::span<const AxisId>(&axis, 1), 0);
      if (members.size() < 2) {
        continue;
      }
      const int stride = members[1] - members[0];
      if (spec.name == "tensor") {
        EXPECT_EQ(stride, layout.stride_of(cost::Axis::tensor)) << text_of(one);
      } else if (spec.name == "sequence") {
        EXPECT_EQ(stride, layout.stride_of(cost::Axis::context)) << text_of(one);
      } else if (spec.name == "pipeline") {
        EXPECT_EQ(stride, layout.stride_of(cost::Axis::pipeline)) << text_of(one);
      } else if (spec.name == "data") {
        EXPECT_EQ(stride, layout.stride_of(cost::Axis::data)) << text_of(one);
      } else {
        const cost::Spans spans = layout.expert_spans();
        std::set<int> expected = {0};
        for (int s = 0; s < spans.count; ++s) {
          std::set<int> more;
          for (const int rank : expected) {
            for (int k = 0; k < spans.of[static_cast<std::size_t>(s)].size; ++k) {
              more.insert(rank + k * spans.of[static_cast<std::size_t>(s)].stride);
            }
          }
          expected = more;
        }
        EXPECT_EQ(std::set<int>(members.begin(), members.end()), expected) << text_of(one);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Layouts, testing::ValuesIn(models),
                         [](const testing::TestParamInfo<Model>& of) { return std::string(of.param.name); });

// Stages' programs and cuts come from the plugin; the published ones are the same.
TEST(Executor, ProgramsArePublishedOnesAndCutsAreThePlans) {
  run_test::ProgramFolder folder;
  folder.write("c.toml", run_test::tiny_config({}));
  const ConfigArguments arguments{folder.path("c.toml").string(), {"model.layers=7"}};
  const Config config = load_config(arguments);
  Executor executor(arguments, alone(config), config);
  for (const auto& [stages, chunks, at_once] : {std::tuple(2, 1, false), {3, 1, true}, {2, 3, false}, {4, 2, false}}) {
    cost::Layout layout;
    layout.pipeline = stages;
    layout.chunks = chunks;
    layout.all_at_once = at_once;
    EXPECT_EQ(executor.program(layout, 8 / stages * stages).of_stage,
              cost::published_programs(layout, 8 / stages * stages).of_stage);
    const Config staged =
        load_config({arguments.file,
                     {"model.layers=7", fmt::format("plugins.pipeline.size={}", stages),
                      fmt::format("plugins.pipeline.chunks={}", chunks),
                      fmt::format("plugins.pipeline.schedule=\"{}\"", chunks > 1 ? "interleaved" : "1f1b"),
                      "batch.sequences=12", "batch.micro_batch=1"}});
    Session session(staged);
    session.plan(0, nullptr, nullptr);
    const std::vector<int>& cut = session.plan().cut();  // layer 0 is the embedding, 8 the head
    const std::vector<int> blocks = executor.blocks(stages, chunks);
    ASSERT_EQ(blocks.size() + 1, cut.size());
    for (std::size_t piece = 0; piece < blocks.size(); ++piece) {
      EXPECT_EQ(blocks[piece], std::min(cut[piece + 1], 8) - std::max(cut[piece], 1)) << piece;
    }
  }
}

}  // namespace
}  // namespace orthant::search_test
