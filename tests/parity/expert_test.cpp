// The expert axis: every way in which rows travel to their experts is equal to one rank, and bit for bit to the
// plainest way; and each direction is the adjoint of the other.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>

#include "apps/check/recording_communicator.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"

namespace orthant::expert_test {
namespace {

using test::axes;
using test::differences;
using test::expect_parity;
using test::expect_same_bits;
using test::experiment;
using test::joined;
using test::Model;
using test::Overrides;
using test::reference_of;
using testing::HasSubstr;

constexpr int steps = 2;

struct Way {
  const char* name;
  int ranks;
  const char* keys;  // of [plugins.expert], beside its size
};
std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.name;
}

std::string expert_axis(const Way& way) {
  return fmt::format("[plugins.data]\nsize = {}\n[plugins.expert]\nsize = {}\n{}", way.ranks, way.ranks, way.keys);
}

const Way ways[] = {
    {"two_chunks", 2, "chunks = 2\n"},
    {"four_chunks", 2, "chunks = 4\n"},
    {"two_nodes", 4, "dispatch = \"hierarchical\"\nnode_ranks = 2\n"},
    {"two_nodes_two_chunks", 4, "dispatch = \"hierarchical\"\nnode_ranks = 2\nchunks = 2\n"},
    {"one_node", 4, "dispatch = \"hierarchical\"\nnode_ranks = 4\n"},
    {"nodes_of_one", 4, "dispatch = \"hierarchical\"\nnode_ranks = 1\nchunks = 2\n"},
    {"four_nodes", 8, "dispatch = \"hierarchical\"\nnode_ranks = 2\n"},
    {"nodes_of_four", 8, "dispatch = \"hierarchical\"\nnode_ranks = 4\n"},
};

// Eight experts: one to four a rank.
const Model models[] = {
    {"top_1", {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"}},
    {"top_2", {"moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"}},
    {"top_3", {"moe.top_k=3", "batch.micro_batch=1"}},
    {"gshard", {R"(moe.router="gshard")", "moe.shared_experts=1"}},
    {"bf16", {R"(run.dtype="bf16")"}},
    // 16 tokens for 32 experts: some get no token.
    {"idle_experts", {"moe.experts=32", "moe.top_k=1", "data.sequence_length=2"}},
};

Overrides with_experts(const Model& model) {
  return joined({"moe.experts=8"}, model.overrides);
}

const Snapshot& snapshot_of(const Model& model, const std::string& plugins) {
  static std::map<std::pair<Overrides, std::string>, Snapshot> known;
  const auto [found, is_new] = known.try_emplace({with_experts(model), plugins});
  if (is_new) {
    found->second = take_snapshot(experiment(with_experts(model), plugins), steps);
  }
  return found->second;
}

// Fixed blocks with empty rows between: sums in another order, so equal but not to the bit.
TEST(Padded, EqualsOneRankWithoutCounts) {
  const Way padded[] = {{"all", 2, "padded = true\n"},
                        {"chunks", 4, "padded = true\nchunks = 2\n"},
                        {"nodes", 4, "padded = true\ndispatch = \"hierarchical\"\nnode_ranks = 2\n"}};
  const Model limited[] = {
      {"top_1", {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"}},
      {"top_2", {"moe.capacity_factor=1.0", R"(moe.drop_policy="probability")", "moe.group_tokens=4"}},
      {"gshard", {R"(moe.router="gshard")", "moe.capacity_factor=0.5", "batch.micro_batch=1"}},
      {"wide", {"moe.capacity_factor=100.0"}},  // more seats than tokens
      {"experts_choose", {R"(moe.router="expert_choice")", "moe.top_k=8", "moe.capacity_factor=2.0"}},
  };
  for (const Way& way : padded) {
    for (const Model& model : limited) {
      SCOPED_TRACE(fmt::format("{} {}", way.name, model.name));
      expect_parity(with_experts(model), expert_axis(way), {.steps = steps, .ranks = way.ranks});
    }
  }
}

TEST(Padded, NeedsACapacity) {
  try {
    take_snapshot(experiment(with_experts(models[3]), expert_axis({"", 2, "padded = true\n"})), 1);
    FAIL() << "a dropless model has no fixed blocks";
  } catch (const Error& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("moe.capacity_factor"));
  }
}

class Ways : public testing::TestWithParam<Way> {};

TEST_P(Ways, EqualOneRankAndToTheBitOneLegInOnePart) {
  const Way& way = GetParam();
  for (const Model& model : models) {
    const Config config = experiment(with_experts(model), expert_axis(way));
    const Snapshot snapshot = take_snapshot(config, steps);
    const VerifyReport report = compare(snapshot, reference_of(with_experts(model), steps), config.settings);
    EXPECT_TRUE(report.ok()) << model.name << ": " << differences(report);
    expect_same_bits(snapshot, snapshot_of(model, axes(way.ranks, way.ranks)), model.name);
  }
}

// Plugins touch memory through operations and groups alone, on two streams too.
TEST_P(Ways, OnTheGuardedDevice) {
  const Model& model = models[1];
  Config config = experiment(with_experts(model), expert_axis(GetParam()));
  config.settings.run.device = "guarded";
  expect_same_bits(take_snapshot(config, 1).gradients[0],
                   snapshot_of(model, axes(GetParam().ranks, GetParam().ranks)).gradients[0]);
}

// <to_experts(x), y> = <x, to_tokens(y)>, over all ranks, and what arrives is in the order of the contract.
TEST_P(Ways, AreAdjointAndInOrder) {
  const Way& way = GetParam();
  constexpr std::int64_t experts = 8, d = 3;
  const Config config = experiment(with_experts(models[1]), expert_axis(way));
  const std::int64_t ranks = way.ranks, local = experts / ranks;
  // Of each source rank, how many rows for each expert; rank 1 has none, and expert 2 gets none.
  auto rows_for = [&](std::int64_t rank, std::int64_t e) {
    return rank == 1 || e == 2 ? std::int64_t{0} : (3 * rank + 5 * e) % 4;
  };
  std::mutex mutex;
  double left = 0, right = 0;
  run_threads(way.ranks, [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    Stream& s = rank.stream();
    Device& device = s.device();
    TokenExchange& exchange = *rank.session().plan().exchange();
    const std::int64_t own = communicator.rank();
    std::vector<std::int32_t> send;
    std::vector<float> x;  // of each row: its source rank, its expert, its number
    for (std::int64_t e = 0; e < experts; ++e) {
      send.push_back(static_cast<std::int32_t>(rows_for(own, e)));
      for (std::int64_t i = 0; i < send.back(); ++i) {
        for (std::int64_t value : {own, e, i}) {
          x.push_back(static_cast<float>(value));
        }
      }
    }
    std::vector<float> expected;
    for (std::int64_t e = own * local; e < (own + 1) * local; ++e) {
      for (std::int64_t source = 0; source < ranks; ++source) {
        for (std::int64_t i = 0; i < rows_for(source, e); ++i) {
          for (std::int64_t value : {source, e, i}) {
            expected.push_back(static_cast<float>(value));
          }
        }
      }
    }
    auto upload = [&](const std::vector<float>& values) {
      Tensor t = device.empty(DType::f32, {static_cast<std::int64_t>(values.size()) / d, d});
      s.upload(t, values.data());
      return t;
    };
    auto download = [&](const Tensor& t) {
      std::vector<float> values(t.elements());
      s.download(values.data(), t);
      return values;
    };
    const Tensor counts = device.empty(DType::i32, {experts});
    s.upload(counts, send.data());
    int meanwhile = 0;
    const ExchangePlan plan = exchange.plan(counts, s, [&] { ++meanwhile; });
    ASSERT_EQ(meanwhile, 1);
    ASSERT_EQ(plan.local.size(), static_cast<std::size_t>(local));
    std::mt19937 random(static_cast<unsigned>(own) + 1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> weights(expected.size()), sent(x.size());
    for (auto* values : {&weights, &sent}) {
      for (float& v : *values) {
        v = uniform(random);
      }
    }
    const Tensor rows = upload(x), sent_rows = upload(sent), y = upload(weights);
    const Tensor arrived = device.empty(DType::f32, y.shape()), dx = device.empty(DType::f32, rows.shape());
    const Tensor arrived_sent = device.empty(DType::f32, y.shape());
    std::int64_t begin = 0;
    for (int c = 0; c < exchange.chunks(); ++c) {
      std::int64_t count = 0;
      for (std::int64_t e = c * local / exchange.chunks(); e < (c + 1) * local / exchange.chunks(); ++e) {
        count += plan.local[e];
      }
      exchange.to_experts(arrived.rows(begin, count), rows, plan, c, s);
      exchange.to_experts(arrived_sent.rows(begin, count), sent_rows, plan, c, s);
      exchange.to_tokens(dx, y.rows(begin, count), plan, c, s);
      begin += count;
    }
    EXPECT_EQ(download(arrived), expected) << "rank " << own;
    auto product = [](const std::vector<float>& a, const std::vector<float>& b) {
      double sum = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
      }
      return sum;
    };
    const double of_y = product(download(arrived_sent), weights), of_x = product(sent, download(dx));
    const std::lock_guard lock(mutex);
    left += of_y;
    right += of_x;
  });
  EXPECT_NE(left, 0);
  EXPECT_NEAR(left, right, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Expert, Ways, testing::ValuesIn(ways), [](const auto& way) { return way.param.name; });

// --- who sends to whom

// Peers on other nodes, of node_ranks ranks each, to which rank 0 sends rows in one all_to_all, at most.
std::size_t peers_on_other_nodes(const Way& way, int node_ranks) {
  const Config config = experiment({"moe.experts=8"}, expert_axis(way));
  CallRecord record;
  run_threads(way.ranks, [&](Communicator& communicator) {
    RecordingCommunicator recording(communicator, record);
    test::TestRank(config, recording).trainer().step(0);
  });
  std::size_t most = 0;
  for (const auto& [group, by_rank] : record.exchanged) {
    if (!by_rank.contains(0)) {
      continue;
    }
    std::size_t elsewhere = 0;
    for (const auto& [rank, calls] : by_rank) {
      elsewhere += rank / node_ranks != 0 ? 1 : 0;
    }
    most = std::max(most, elsewhere);
  }
  return most;
}

TEST(Hierarchical, SendsToOneRankOfEachOtherNode) {
  EXPECT_EQ(peers_on_other_nodes({"", 8, ""}, 2), 6u);
  EXPECT_EQ(peers_on_other_nodes(ways[6], 2), 3u);
  EXPECT_EQ(peers_on_other_nodes({"", 8, ""}, 4), 4u);
  EXPECT_EQ(peers_on_other_nodes(ways[7], 4), 1u);
}

// Every chunk of every layer travels by itself.
TEST(Chunks, TravelOneByOne) {
  auto exchanges = [&](const char* keys) {
    const Config config = experiment({"moe.experts=8"}, expert_axis({"", 2, keys}));
    CallRecord record;
    run_threads(2, [&](Communicator& communicator) {
      RecordingCommunicator recording(communicator, record);
      test::TestRank(config, recording).trainer().step(0);
    });
    std::size_t calls = 0;
    for (const auto& [group, by_rank] : record.exchanged) {
      calls += by_rank.begin()->second.size();
    }
    return calls;
  };
  // Two layers: counts once, rows to the experts and back, and the same backwards with the combine weights along.
  EXPECT_EQ(exchanges(""), 2u * (1 + 2 + 4));
  EXPECT_EQ(exchanges("chunks = 4\n"), 2u * (1 + 4 * (2 + 4)));
}

// --- what is refused, before anything starts

std::string refusal(const std::string& keys, const Overrides& overrides = {"moe.experts=8"}) {
  return test::refusal(overrides, expert_axis({"", 4, keys.c_str()}));
}

TEST(ExpertAxis, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal("dispatch = \"hierarchical\"\n"), HasSubstr("node_ranks = 0 does not divide the 4 ranks"));
  EXPECT_THAT(refusal("dispatch = \"hierarchical\"\nnode_ranks = 3\n"), HasSubstr("node_ranks = 3 does not divide"));
  EXPECT_THAT(refusal("node_ranks = 2\n"), HasSubstr("node_ranks is for dispatch"));
  EXPECT_THAT(refusal("chunks = 3\n"), HasSubstr("the 2 experts of a rank do not divide into chunks = 3"));
  EXPECT_THAT(refusal("", {"moe.experts=6"}), HasSubstr("6 units of dim 'expert'"));
  EXPECT_THAT(refusal("", {"moe.experts=0"}), HasSubstr("the model has no experts"));
  EXPECT_THAT(refusal("padded = true\n"), HasSubstr("padded = true needs a capacity"));
  EXPECT_EQ(refusal("chunks = 2\n"), "(accepted with 4 ranks)");
}

// At the value to change, wherever it stands in the table.
TEST(ExpertAxis, RefusesAtTheKey) {
  const Overrides dropless = {"moe.experts=8"};
  const std::string table = "[plugins.data]\nsize = 4\n[plugins.expert]\n";
  EXPECT_THAT(test::refusal(dropless, table + "size = 4\npadded = true\n"),
              HasSubstr("    | padded = true\n    |          ^^^^\n"));
  EXPECT_THAT(test::refusal(dropless, table + "size = 4\nchunks = 3\n"),
              HasSubstr("    | chunks = 3\n    |          ^\n"));
  EXPECT_THAT(test::refusal(dropless, table + "size = 4\nnode_ranks = 2\n"),
              HasSubstr("    | node_ranks = 2\n    |              ^\n"));
}

}  // namespace
}  // namespace orthant::expert_test
