// Validation sets by name: in every layout each has the loss of one rank, which is that of a run that holds the set's
// file out of its data.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/run_supervisor.h"

namespace orthant::validation_sets_test {
namespace {

using test::experiment;
using test::joined;
using test::Overrides;
using test::TestRank;

std::string table(const std::string& axis, int size, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", axis, size, keys);
}

class ValidationSets : public testing::Test {
 protected:
  std::string write(const std::string& name, std::size_t size, unsigned seed) {
    std::string text;
    for (unsigned i = seed; text.size() < size; i = i * 1664525u + 1013904223u) {
      text += static_cast<char>('a' + (i >> 24) % 20);
    }
    const std::filesystem::path file = folder_.path() / name;
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }
  // Noise that depends on a token's place, and dropping, which the loss of a set must not know of.
  Overrides model() const {
    return {"data.source=\"text\"",      "model.vocab_size=256", "data.path=" + train_, "data.validation_sequences=5",
            "moe.capacity_factor=1.0",   "model.dropout=0.2",    "model.layers=4",      "moe.every=2",
            "data.validation_fraction=0"};
  }
  std::vector<Validation> validations(const Overrides& overrides, const std::string& plugins) {
    const Config config = experiment(overrides, plugins);
    std::vector<Validation> found;
    std::mutex mutex;
    run_threads(check_layout(config), [&](Communicator& communicator) {
      TestRank rank(config, communicator);
      rank.trainer().validate_sets();
      for (const ValidatedRouting& again : rank.trainer().validate_sets().routing) {
        EXPECT_EQ(again.churn, 0.0) << "nothing has changed, in no set";
      }
      rank.trainer().step(0);
      Validation second = rank.trainer().validate_sets();
      EXPECT_EQ(rank.trainer().validate(), second.loss);
      const std::lock_guard lock(mutex);
      found.push_back(std::move(second));
    });
    return found;
  }

  launch_test::TemporaryFolder folder_;
  std::string train_ = write("train.txt", 900, 1);
  std::string long_ = write("long.txt", 300, 2),
              short_ = write("short.txt", 31, 3);  // five windows; 12 + 12 + 6 tokens
};

TEST_F(ValidationSets, HaveTheLossOfOneRankInEveryLayout) {
  const Overrides sets = joined(model(), {fmt::format("data.validation_path=[\"{}\", \"{}\"]", long_, short_)});
  const Validation one = validations(sets, "").front();
  ASSERT_EQ(one.sets.size(), 2u);
  EXPECT_EQ(one.sets[0].first, "long");
  EXPECT_EQ(one.sets[1].first, "short");
  EXPECT_GT(std::abs(one.sets[0].second - one.sets[1].second), 1e-3) << "the sets must not be alike";
  EXPECT_NEAR(one.loss, (60 * one.sets[0].second + 30 * one.sets[1].second) / 90, 1e-12);
  const std::vector<std::string> layouts = {
      table("data", 2),
      table("data", 4, "zero = 3\n") + table("expert", 4),
      table("data", 8) + table("expert", 4),
      table("tensor", 2, "sequence_parallel = true\n"),
      table("sequence", 2) + table("data", 2) + table("expert", 2),
      table("pipeline", 2, "schedule = \"1f1b\"\n"),
      table("pipeline", 2, "schedule = \"interleaved\"\nchunks = 2\n") + table("data", 2),
      table("tensor", 2) + table("pipeline", 2) + table("data", 2, "zero = 2\n") + table("expert", 2)};
  for (const std::string& plugins : layouts) {
    for (const Overrides& more : {Overrides{}, Overrides{"batch.micro_batch=1"}}) {
      if (more.empty() && plugins.find("interleaved") != std::string::npos) {
        continue;  // it needs several micro-batches
      }
      for (const Validation& other : validations(joined(sets, more), plugins)) {
        EXPECT_NEAR(other.loss, one.loss, 1e-6) << plugins;
        ASSERT_EQ(other.sets.size(), 2u);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(other.sets[i].first, one.sets[i].first);
          EXPECT_NEAR(other.sets[i].second, one.sets[i].second, 1e-6) << plugins << other.sets[i].first;
        }
        ASSERT_EQ(other.routing.size(), one.routing.size());
        for (std::size_t layer = 0; layer < one.routing.size(); ++layer) {
          EXPECT_EQ(other.routing[layer].pairs, one.routing[layer].pairs) << plugins;
          EXPECT_TRUE(other.routing[layer].churn.has_value());
        }
      }
    }
  }
}

// The first step's batch is another text then, so that the weights are those of no step.
TEST_F(ValidationSets, HaveTheLossOfARunThatHoldsTheFileOut) {
  const auto untrained = [&](const Overrides& more) {
    test::OneRank rank(experiment(joined(model(), more)));
    return rank->trainer().validate_sets();
  };
  std::vector<double> alone;
  for (const auto& [file, bytes] : {std::pair(long_, 300), std::pair(short_, 31)}) {
    const Validation set = untrained({"data.validation_path=" + file});
    const Validation held_out = untrained({fmt::format("data.path=[\"{}\", \"{}\"]", train_, file),
                                           fmt::format("data.validation_fraction={:.17g}", bytes / (900.0 + bytes))});
    EXPECT_TRUE(held_out.sets.empty());
    ASSERT_EQ(set.sets.size(), 1u);
    EXPECT_EQ(set.loss, set.sets[0].second);
    EXPECT_EQ(set.loss, held_out.loss) << file;
    alone.push_back(set.loss);
  }
  const Validation both = untrained({fmt::format("data.validation_path=[\"{}\", \"{}\"]", long_, short_)});
  ASSERT_EQ(both.sets.size(), 2u);
  EXPECT_EQ(both.sets[0].second, alone[0]);
  EXPECT_EQ(both.sets[1].second, alone[1]);
}

// validation_loss stays that of what is held out where something is.
TEST_F(ValidationSets, LeaveTheHeldOutLossAsItWas) {
  const Overrides held_out = joined(model(), {"data.validation_fraction=0.2"});
  for (const std::string& plugins : {std::string(), table("data", 2) + table("pipeline", 2)}) {
    const Validation without = validations(held_out, plugins).front();
    const Validation with = validations(joined(held_out, {"data.validation_path=" + short_}), plugins).front();
    EXPECT_EQ(with.loss, without.loss);
    EXPECT_EQ(with.sets.size(), 1u);
    EXPECT_NE(with.sets[0].second, with.loss);
    EXPECT_NE(with.routing[0].pairs, without.routing[0].pairs) << "routing is told of all that is measured";
  }
}

}  // namespace
}  // namespace orthant::validation_sets_test
