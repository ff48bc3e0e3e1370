// Recordings of routing, and what they say of other settings, against runs of those settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/route/replay.h"
#include "apps/route/step_time.h"
#include "tests/route/recorded.h"
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

StepReport first_step(const Config& config) {
  test::OneRank rank(config);
  return rank->trainer().step(0);
}

void expect_the_counters(const std::vector<Decisions>& got, const StepReport& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.layers.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const LayerCounters& layer = want.layers[i];
    EXPECT_EQ(got[i].layer, layer.block + 1) << what;  // recordings count from 1
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
  EXPECT_THAT(test::error_of<ConfigError>([&] { recorded_steps(folder.path()); }), HasSubstr("run.record_routing"));
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
  EXPECT_THAT(test::error_of<ConfigError>([&] { recorded_steps(folder.path()); }), HasSubstr("no routing is recorded"));
}

// Of a predicted time only what changed is changed.
TEST(StepTime, ReplacesWorkByWork) {
  const RoutedWork was{.experts = 3, .gates = 1, .exchange = 2, .slots = 1};
  EXPECT_DOUBLE_EQ(predicted_seconds(10, was, was), 10);
  RoutedWork slower = was;
  slower.gates = 4;
  EXPECT_DOUBLE_EQ(predicted_seconds(10, was, slower), 13);
  RoutedWork spread = was;
  spread.slots = 2;
  EXPECT_DOUBLE_EQ(predicted_seconds(10, was, spread), 8) << "the 4 s that are neither, on two slots";
}

TEST(StepTime, TimesTheGatesOfTheRecordedLayers) {
  for (const Overrides& gate : gates) {
    const Folder folder("gates");
    const Config config = experiment(joined(gate, {"run.threads=1"}));
    record(config, folder.path());
    const RecordedStep step = read_recording(folder.path(), 1, config.settings);
    WorkTimer timer(config.settings);
    EXPECT_GT(timer.gates(step, config.settings, 1), 0) << testing::PrintToString(gate);  // of one whole group
  }
}

}  // namespace
}  // namespace orthant::route_test
