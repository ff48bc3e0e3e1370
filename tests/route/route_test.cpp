// Recordings of routing, and what they say of other settings, against runs of those settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/dry_run/planning.h"
#include "core/route/recorder.h"
#include "core/route/travel.h"
#include "parallel/local/local_communicator.h"
#include "parallel/local/thread_world.h"
#include "parallel/local/traffic.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"

namespace orthant::route_test {
namespace {

namespace fs = std::filesystem;
using test::experiment;
using test::joined;
using test::Overrides;
using testing::AllOf;
using testing::HasSubstr;

std::string table(const std::string& axis, int size, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", axis, size, keys);
}

// A folder that goes with the test.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::path(testing::TempDir()) / fmt::format("route_{}_{}", name, ::getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Records step `step` (from 1) after those before it. Returns its report.
StepReport record(const Config& config, const fs::path& run, int step = 1) {
  std::vector<StepReport> reports(static_cast<std::size_t>(check_layout(config)));
  run_threads(static_cast<int>(reports.size()), [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    RoutingRecorder recorder(rank.session().plan());
    for (int s = 0; s < step; ++s) {
      rank.trainer().look_on(s + 1 == step ? &recorder : nullptr);
      reports[static_cast<std::size_t>(communicator.rank())] = rank.trainer().step(s);
    }
    recorder.write(run, step, rank.trainer().world(), rank.stream());
  });
  return reports.front();
}

StepReport first_step(const Config& config) {
  test::OneRank rank(config);
  return rank->trainer().step(0);
}

void expect_the_counters(const std::vector<Decisions>& got, const StepReport& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.layers.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const LayerCounters& layer = want.layers[i];
    EXPECT_EQ(got[i].layer, layer.layer) << what;
    EXPECT_EQ(got[i].load, layer.load) << what;
    EXPECT_EQ(got[i].computed, layer.kept) << what;
    EXPECT_EQ(got[i].choices, layer.choices) << what;
    EXPECT_EQ(got[i].dropped_by_capacity, layer.dropped_by_capacity) << what;
    EXPECT_EQ(got[i].dropped_by_chance, layer.dropped_by_chance) << what;
  }
}

const std::vector<Overrides> gates = {
    {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"},
    {R"(moe.router="gshard")", "moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"},
    {R"(moe.router="topk")", "moe.capacity_factor=1.0", "batch.micro_batch=2"},
    {R"(moe.router="topk")", "moe.capacity_factor=0", R"(moe.score="sigmoid")"},
    {R"(moe.router="bias")", "moe.capacity_factor=1.25", "moe.bias_update_rate=0.5"},
    {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.5"}};

TEST(Recording, IsReplayedToTheRunsOwnCounters) {
  for (const Overrides& gate : gates) {
    const Folder folder("own");
    const Config config = experiment(gate);
    const StepReport report = record(config, folder.path(), 2);
    EXPECT_EQ(recorded_steps(folder.path()), std::vector<std::int64_t>{2});
    const RecordedStep step = read_recording(folder.path(), 2, config.settings);
    expect_the_counters(replay(step, config.settings), report, testing::PrintToString(gate));
  }
}

TEST(Recording, IsTheSameInAnyLayout) {
  const Overrides model = {"model.layers=4", "moe.every=2", "moe.capacity_factor=1.0"};
  const Folder one("one");
  record(experiment(model), one.path());
  const RecordedStep want = read_recording(one.path(), 1, experiment(model).settings);
  ASSERT_EQ(want.of_stages.size(), 1U);
  for (const std::string& plugins : {table("data", 4) + table("expert", 2), table("sequence", 2) + table("data", 2),
                                     table("tensor", 2, "sequence_parallel = true\n"),
                                     table("tensor", 2) + table("pipeline", 2) + table("data", 2)}) {
    const Folder folder("layout");
    const Config config = experiment(joined(model, {"batch.micro_batch=2"}), plugins);
    const StepReport report = record(config, folder.path());
    const RecordedStep got = read_recording(folder.path(), 1, config.settings);
    std::vector<RecordedLayer> layers;
    for (const RecordedTokens& stage : got.of_stages) {
      EXPECT_EQ(stage.index, want.of_stages[0].index) << plugins;
      EXPECT_EQ(stage.valid, want.of_stages[0].valid) << plugins;
      layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
    }
    ASSERT_EQ(layers.size(), 2U) << plugins;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_LT(test::relative_difference(layers[i].logits, want.of_stages[0].layers[i].logits), 1e-5) << plugins;
    }
    expect_the_counters(replay(got, config.settings), report, plugins);
  }
}

// One recording of a run answers for others, which are then run: in the first routed layer every count is theirs.
TEST(Recording, SaysWhatTwentyOtherSettingsDropInTheFirstStep) {
  const Overrides model = {"model.layers=2", "moe.every=2", "moe.experts=8", "moe.capacity_factor=1.0"};
  const Folder folder("twenty");
  const Config base = experiment(model);
  record(base, folder.path());
  const RecordedStep step = read_recording(folder.path(), 1, base.settings);
  std::vector<Overrides> others;
  for (const char* factor : {"0.5", "0.75", "1.1", "1.25", "1.5", "2.0", "0"}) {
    others.push_back({fmt::format("moe.capacity_factor={}", factor)});
  }
  for (const char* factor : {"0.5", "1.0", "1.5"}) {
    others.push_back({fmt::format("moe.capacity_factor={}", factor), R"(moe.drop_policy="probability")"});
    others.push_back({fmt::format("moe.capacity_factor={}", factor), R"(moe.router="switch")", "moe.top_k=1"});
    others.push_back({fmt::format("moe.capacity_factor={}", factor), R"(moe.router="gshard")"});
    others.push_back({fmt::format("moe.capacity_factor={}", factor), R"(moe.router="expert_choice")", "moe.top_k=0"});
  }
  others.push_back({"moe.top_k=3"});
  others.push_back({"moe.group_tokens=24"});
  others.push_back({"moe.expert_groups=4", "moe.groups_per_token=2"});
  ASSERT_GE(others.size(), 20U);
  std::int64_t drops = 0;
  for (const Overrides& other : others) {
    const Config config = experiment(joined(model, other));
    const StepReport report = first_step(config);
    expect_the_counters(replay(step, config.settings), report, testing::PrintToString(other));
    drops += report.layers.front().dropped_by_capacity;
  }
  EXPECT_GT(drops, 0);
}

// Of many experts the greatest logits are kept, which is enough for a router that goes by them.
TEST(Recording, KeepsTheGreatestLogitsOfMany) {
  const Overrides many = {"moe.experts=80", "moe.capacity_factor=1.0"};
  for (const Overrides& more : {Overrides{}, Overrides{R"(moe.router="switch")", "moe.top_k=1"}}) {
    const Folder folder("many");
    const Config config = experiment(joined(many, more));
    const StepReport report = record(config, folder.path());
    const RecordedStep step = read_recording(folder.path(), 1, config.settings);
    EXPECT_EQ(step.kept_logits, config.settings.moe.top_k + 8);
    expect_the_counters(replay(step, config.settings), report, "80 experts");
    const Config chooses =
        experiment(joined(many, {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.0"}));
    EXPECT_THAT(test::error_of([&] { replay(step, chooses.settings); }), HasSubstr("run.record_logits=80"));
  }
}

TEST(Recording, IsOfSoManyExpertsAsTheRunHad) {
  const Folder folder("count");
  const Config config = experiment({"moe.experts=8"});
  record(config, folder.path());
  const RecordedStep step = read_recording(folder.path(), 1, config.settings);
  for (const char* count : {"moe.experts=4", "moe.experts=16"}) {
    EXPECT_THAT(test::error_of([&] { replay(step, experiment({count}).settings); }),
                HasSubstr("which are not those of"));
  }
}

// An expert's bias, and groups of experts, choose what no greatest logit shows.
TEST(Recording, KeepsEveryLogitWhereMoreThanLogitsChooses) {
  for (const Overrides& gate : std::vector<Overrides>{
           {"moe.experts=80", R"(moe.router="bias")", "moe.bias_update_rate=0.5"},
           {"moe.experts=80", R"(moe.router="topk")", "moe.expert_groups=8", "moe.groups_per_token=2"}}) {
    const Folder folder("every");
    const Config config = experiment(gate);
    const StepReport report = record(config, folder.path(), 3);
    const RecordedStep step = read_recording(folder.path(), 3, config.settings);
    EXPECT_EQ(step.kept_logits, 80);
    expect_the_counters(replay(step, config.settings), report, testing::PrintToString(gate));
  }
}

nlohmann::json manifest_of(const fs::path& step) {
  std::ifstream in(step / "recording.json");
  return nlohmann::json::parse(in);
}

// As older programs wrote them.
void forget_checksums(const fs::path& step) {
  nlohmann::json manifest = manifest_of(step);
  manifest.erase("checksums");
  std::ofstream(step / "recording.json") << manifest.dump();
}

TEST(Recording, ThatIsDamagedIsRefused) {
  const Folder folder("damaged");
  const Config config = experiment({}, {});
  record(config, folder.path());
  const fs::path step = recording_folder(folder.path(), 1), part = step / part_name(0);
  const auto read = [&] { read_recording(folder.path(), 1, config.settings); };
  std::string whole;
  {
    std::ostringstream bytes;
    bytes << std::ifstream(part, std::ios::binary).rdbuf();
    whole = bytes.str();
  }
  const auto write = [&](const std::string& bytes) { std::ofstream(part, std::ios::binary) << bytes; };
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write(flipped);
  EXPECT_THAT(test::error_of(read), AllOf(HasSubstr(part_name(0)), HasSubstr("its checksum is")));
  write(whole);
  EXPECT_EQ(test::error_of(read), "no error");
  // Another step's folder under this one's name.
  nlohmann::json manifest = manifest_of(step);
  manifest["step"] = 2;
  std::ofstream(step / "recording.json") << manifest.dump();
  EXPECT_THAT(test::error_of(read), HasSubstr("it is of step 2, and its folder is that of step 1"));
  manifest["step"] = 1;
  std::ofstream(step / "recording.json") << manifest.dump();
  // Without checksums, numbers that nothing can be told from are still refused.
  forget_checksums(step);
  EXPECT_EQ(test::error_of(read), "no error");
  const std::size_t header = 8 + static_cast<unsigned char>(whole[0]) + 256 * static_cast<unsigned char>(whole[1]);
  const nlohmann::json tensors = nlohmann::json::parse(whole.substr(8, header - 8));
  for (const char* name : {"logits", "lse"}) {
    const auto at = tensors.at(fmt::format("layers.2.{}", name)).at("data_offsets")[0].get<std::size_t>();
    std::string bad = whole;
    const float nan = NAN;
    std::memcpy(bad.data() + header + at, &nan, sizeof nan);
    write(bad);
    EXPECT_THAT(test::error_of(read),
                AllOf(HasSubstr(part_name(0)), HasSubstr("layer 2"), HasSubstr("not finite"), HasSubstr(name)));
  }
}

TEST(Recording, ThatIsNotWholeIsRefused) {
  const Folder folder("broken");
  const Config config = experiment({}, table("data", 2));
  EXPECT_THAT(test::error_of([&] { recorded_steps(folder.path()); }), HasSubstr("run.record_routing"));
  record(config, folder.path());
  const fs::path step = recording_folder(folder.path(), 1);
  const auto read = [&] { read_recording(folder.path(), 1, config.settings); };
  fs::rename(step / part_name(1), step / "away");
  EXPECT_THAT(test::error_of(read), HasSubstr(part_name(1)));
  fs::copy_file(step / part_name(0), step / part_name(1));
  EXPECT_THAT(test::error_of(read), HasSubstr("its checksum is"));
  forget_checksums(step);
  EXPECT_THAT(test::error_of(read), HasSubstr("each once"));
  fs::resize_file(step / part_name(1), 100);
  EXPECT_THAT(test::error_of(read), HasSubstr(part_name(1)));
  fs::remove(step / "recording.json");  // a run that was killed before
  EXPECT_THAT(test::error_of([&] { recorded_steps(folder.path()); }), HasSubstr("no routing is recorded"));
}

// --- bytes

struct Moved {
  std::int64_t inside = 0, between = 0;
};

// What all ranks send in all-to-alls of a first step: all of one level inside, the legs of two levels apart.
Moved moved_by(const Config& config) {
  const int world = check_layout(config);
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < world; ++rank) {
    plans.push_back(plan_rank(config, rank));
  }
  const auto segment = LocalSegment::create(world);
  std::barrier everyone(world);
  Moved moved;
  const auto add = [&](std::int64_t sign) {
    for (const RankPlan& plan : plans) {
      for (std::size_t group = 0; group < plan.step.groups.size(); ++group) {
        const auto traffic = traffic_of(*segment, static_cast<int>(group), plan.rank);
        const auto bytes =
            sign * static_cast<std::int64_t>(traffic[static_cast<std::size_t>(Collective::all_to_all)].ideal_bytes);
        (plan.step.groups[group].name == "expert across" ? moved.between : moved.inside) += bytes;
      }
    }
  };
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto communicator = make_local_communicator(segment, rank, 60);
      test::TestRank one(config, *communicator);
      one.stream().synchronize();
      everyone.arrive_and_wait();
      if (rank == 0) {
        add(-1);
      }
      everyone.arrive_and_wait();
      one.trainer().step(0);
      one.stream().synchronize();
      everyone.arrive_and_wait();
      if (rank == 0) {
        add(1);
      }
      everyone.arrive_and_wait();
    });
  }
  ranks.clear();
  return moved;
}

struct Way {
  Overrides overrides;
  int ranks, expert_ranks, node_ranks;  // node_ranks > 0: two levels
  std::size_t batches;
  bool recomputed;
};

TEST(Travel, IsTheBytesThatRanksMove) {
  const Overrides model = {"moe.experts=8", "moe.capacity_factor=1.0"};
  const std::vector<Way> ways = {
      {{}, 2, 2, 0, 1, false},
      {{}, 4, 4, 0, 1, false},
      {{}, 4, 2, 0, 1, false},
      {{"batch.micro_batch=1"}, 4, 4, 0, 2, false},
      {{"batch.micro_batch=1", R"(memory.recompute="full")"}, 4, 4, 0, 2, true},
      {{R"(run.dtype="bf16")"}, 4, 4, 0, 1, false},
      {{}, 4, 4, 2, 1, false},
      {{"batch.sequences=16"}, 8, 8, 2, 1, false},
      {{R"(moe.router="expert_choice")", "moe.top_k=0"}, 4, 2, 0, 1, false},
  };
  for (const Way& way : ways) {
    const Overrides overrides = joined(model, way.overrides);
    const std::string dispatch =
        way.node_ranks > 0 ? fmt::format("dispatch = \"hierarchical\"\nnode_ranks = {}\n", way.node_ranks) : "";
    const Config config = experiment(overrides, table("data", way.ranks) + table("expert", way.expert_ranks, dispatch));
    const std::string what = testing::PrintToString(way.overrides) + fmt::format(" {} {}", way.ranks, way.node_ranks);
    // Recorded on one rank.
    const Folder folder("bytes");
    const bool bf16 = config.settings.run.dtype == ComputeType::bf16;
    record(bf16 ? config : experiment(overrides), folder.path());
    const RecordedStep step = read_recording(folder.path(), 1, config.settings);
    const ExpertLayout layout{.ranks = way.ranks,
                              .expert_ranks = way.expert_ranks,
                              .node_ranks = way.node_ranks,
                              .two_levels = way.node_ranks > 0,
                              .place_of_expert = {},
                              .recomputed = std::vector<bool>(way.batches, way.recomputed),
                              .width = config.settings.model.d_model,
                              .element_bytes = bf16 ? 2 : 4};
    Moved said;
    for (const Decisions& layer : replay(step, config.settings)) {
      const Travel travel = travel_of(layer, layout);
      said.inside += travel.bytes_inside;
      said.between += travel.bytes_between;
    }
    const Moved moved = moved_by(config);
    EXPECT_GT(moved.inside, 0) << what;
    EXPECT_EQ(said.inside, moved.inside) << what;
    EXPECT_EQ(said.between, moved.between) << what;
  }
}

// Two tokens for each of two ranks, counted by hand.
TEST(Travel, FollowsThePlacement) {
  Decisions made{.layer = 1,
                 .top_k = 1,
                 .expert = {0, 1, 2, 0},
                 .kept = {1, 1, 1, 0},
                 .load = {2, 1, 1, 0},
                 .computed = {1, 1, 1, 0}};
  ExpertLayout layout{
      .ranks = 2, .expert_ranks = 2, .place_of_expert = {}, .recomputed = {false}, .width = 10, .element_bytes = 4};
  const std::int64_t row = 4 * 40 + 8, counts = 2 * 2 * 4;
  EXPECT_EQ(travel_of(made, layout).bytes_inside, counts) << "each rank's tokens stay";
  EXPECT_EQ(travel_of(made, layout).rows_of_ranks(), (std::vector<std::int64_t>{2, 1}));
  layout.place_of_expert = {1, 0, 0, 1};
  EXPECT_EQ(travel_of(made, layout).bytes_inside, counts + 2 * row);
  EXPECT_EQ(travel_of(made, layout).rows_of_ranks(), (std::vector<std::int64_t>{2, 1}));
  layout.node_ranks = 1;
  EXPECT_EQ(travel_of(made, layout).bytes_between, counts + 2 * row);
  EXPECT_EQ(travel_of(made, layout).bytes_inside, 0);
  layout.ranks = 3;
  EXPECT_THAT(test::error_of([&] { travel_of(made, layout); }), HasSubstr("3 ranks cannot be shared out"));
}

TEST(Travel, PlacementsAreReadOrRefused) {
  const Folder folder("placement");
  const fs::path file = folder.path() / "p";
  const auto read = [&](const std::string& text) {
    std::ofstream(file) << text;
    return read_placement(file, 4, 2);
  };
  EXPECT_EQ(read("3 0\n1 2\n"), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_THAT(test::error_of([&] { read("0 1\n1 2 3\n"); }), HasSubstr("line 2: '1'"));
  EXPECT_THAT(test::error_of([&] { read("0 1\n2\n"); }), HasSubstr("expert 3 is on no line"));
  EXPECT_THAT(test::error_of([&] { read("0 1\n2\n3\n"); }), HasSubstr("line 3"));
  EXPECT_THAT(test::error_of([&] { read("0 x\n"); }), HasSubstr("'x'"));
  EXPECT_THAT(test::error_of([&] { read_placement(folder.path() / "none", 4, 2); }), HasSubstr("cannot be read"));
  EXPECT_THAT(test::error_of([&] { read_placement(folder.path(), 4, 2); }), HasSubstr("cannot be read"));
  EXPECT_EQ(read("0 1 2 3\n\n"), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_THAT(test::error_of([&] { read("0 1 2 3\n"); }), HasSubstr("it has 1 lines, and 2 ranks share"));
}

}  // namespace
}  // namespace orthant::route_test
