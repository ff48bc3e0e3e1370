// orthant checkpoint: what a run has saved, whether it can be read, and the mean of its weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/pretrained/average.h"
#include "core/checkpoint/checkpoint.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::average_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using run_test::Result;
using run_test::with_set;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<float> values_of(const CheckpointReader& reader, const std::string& name) {
  const Shape shape = reader.info(name).shape;
  std::vector<std::int64_t> offset, size;
  for (int i = 0; i < shape.rank(); ++i) {
    offset.push_back(0);
    size.push_back(shape[i]);
  }
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  reader.read(name, offset, size, values.data());
  return values;
}

class Average : public testing::Test {
 protected:
  Average() { folder_.write("c.toml", run_test::tiny_config({.data = 2, .expert = 2})); }

  // Four checkpoints, of the steps 2, 4, 6 and 8.
  void train(std::vector<std::string> set = {}, const std::string& name = "r") const {
    set.insert(set.end(), {"run.name=" + name, "run.steps=8", "run.checkpoint_every=2", "run.keep=4"});
    const Result done = folder_.orthant(with_set({"launch", "c.toml"}, set));
    ASSERT_EQ(done.code, 0) << done.output << done.error;
  }
  AverageResult average(std::vector<fs::path> sources, std::int64_t last = 0,
                        const std::string& output = "mean") const {
    for (fs::path& source : sources) {
      source = folder_.path() / source;
    }
    return average_checkpoints({.sources = sources, .last = last, .output = folder_.path(output)}, keys_of_plugin,
                               kinds_of_plugin);
  }
  std::string refusal(const std::vector<fs::path>& sources, std::int64_t last = 0) const {
    const std::string said = test::error_of([&] { average(sources, last); });
    EXPECT_FALSE(fs::exists(folder_.path("mean")));
    return said;
  }

  run_test::ProgramFolder folder_;
};

TEST_F(Average, IsTheMeanOfEachWeightAndOfTheBiasesOfExperts) {
  train({"moe.router=bias", "moe.bias_update_rate=0.03"});
  const AverageResult result = average({"runs/r"}, 3);
  ASSERT_EQ(result.checkpoints.size(), 3u);

  const CheckpointReader mean(starting_checkpoint(folder_.path("mean")));
  std::vector<CheckpointReader> of;
  for (const int step : {4, 6, 8}) {
    of.emplace_back(folder_.checkpoint(step));
  }
  std::int64_t weights = 0, gates = 0, moved = 0;
  for (const std::string& name : of.back().names()) {
    if (name.starts_with("optimizer/")) {
      EXPECT_FALSE(mean.has(name)) << name;
      continue;
    }
    const std::vector<float> a = values_of(of[0], name), b = values_of(of[1], name), c = values_of(of[2], name),
                             found = values_of(mean, name);
    ASSERT_EQ(found.size(), a.size()) << name;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double expected = (static_cast<double>(a[i]) + b[i] + c[i]) / 3;
      ASSERT_EQ(found[i], static_cast<float>(expected)) << name << " " << i;
      moved += found[i] != c[i] ? 1 : 0;
    }
    (name.starts_with("gate/") ? gates : weights) += static_cast<std::int64_t>(found.size());
  }
  EXPECT_EQ(weights, result.parameters);
  EXPECT_GT(gates, 0);
  EXPECT_GT(moved, weights / 2);  // or the test shows nothing
}

TEST_F(Average, IsAModelLikeAnyOther) {
  train();
  const Result made = folder_.orthant(
      {"checkpoint", "average", "runs/r/checkpoints/step_000006/", "runs/r/checkpoints/step_000008", "-o", "mean"});
  ASSERT_EQ(made.code, 0) << made.error;
  EXPECT_THAT(made.output, AllOf(HasSubstr("mean: the mean of 2 checkpoints"), HasSubstr("step_000006\n")));
  EXPECT_EQ(folder_.orthant({"generate", "mean", "--prompt", "ab", "--max-tokens", "3"}).code, 0);
  folder_.write(
      "on.toml",
      "extends = [\"c.toml\", \"mean/model.toml\"]\n[run]\nname = \"on\"\nsteps = 1\n[train]\nfrom = \"mean\"\n");
  const Result on = folder_.orthant({"launch", "on.toml"});
  EXPECT_EQ(on.code, 0) << on.error;
}

// Groups of 48 tokens fit no sequence of the default length, and a mean that eval takes in other windows than the runs
// that it is of would look better or worse for that alone.
TEST_F(Average, HasTheLengthsOfWhatItIsOf) {
  train({"data.sequence_length=24", "moe.group_tokens=48", "batch.sequences=12"});
  average({"runs/r"}, 2);
  folder_.write("words.txt", std::string(200, 'a'));
  const Result measured = folder_.orthant({"eval", "mean", "words.txt", "--json"});
  ASSERT_EQ(measured.code, 0) << measured.error;
  EXPECT_EQ(json::parse(measured.output).at("length"), 24);
}

// Its B is zero at first: the mean of A and that of B are then not the mean of B A.
TEST_F(Average, AddsAdaptersToTheirMatricesFirst) {
  train({"lora.rank=2", "lora.targets=[\"*.q_proj.weight\"]", "optimizer.lr=0.05"});
  average({"runs/r"}, 2);
  const CheckpointReader mean(starting_checkpoint(folder_.path("mean")));
  const std::string stem = "model.layers.0.self_attn.q_proj.";
  const CheckpointReader six(folder_.checkpoint(6)), eight(folder_.checkpoint(8));
  const std::vector<float> base = values_of(eight, stem + "weight"), found = values_of(mean, stem + "weight");
  const std::int64_t inner = eight.info(stem + "weight").shape[1];
  double largest = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const std::size_t row = i / inner, column = i % inner;
    double sum = 0;
    for (const CheckpointReader* reader : {&six, &eight}) {
      const std::vector<float> a = values_of(*reader, stem + "lora_A.weight"),
                               b = values_of(*reader, stem + "lora_B.weight");
      for (std::size_t r = 0; r < 2; ++r) {
        sum += 8.0 * b[row * 2 + r] * a[r * inner + column];  // alpha / rank
      }
    }
    EXPECT_NEAR(found[i], base[i] + sum / 2, 1e-6);
    largest = std::max(largest, std::abs(sum / 2));
  }
  EXPECT_GT(largest, 1e-4);
  EXPECT_FALSE(mean.has(stem + "lora_A.weight"));
}

// A soup: runs that were trained in other ways, on other data, from one model.
TEST_F(Average, TakesModelsThatWereTrainedInOtherWays) {
  train();
  folder_.write("other.txt", std::string(3000, 'a'));
  train(
      {"model.dropout=0.0", "moe.aux_loss=0.3", "moe.jitter=0.0", "moe.capacity_factor=0.0", "moe.group_tokens=8",
       "optimizer.lr=0.1", "optimizer.schedule=\"constant\"", "data.path=other.txt", "run.seed=9", "batch.sequences=8"},
      "other");
  average({"runs/r/checkpoints/step_000008", "runs/other/checkpoints/step_000008"});
  const CheckpointReader mean(starting_checkpoint(folder_.path("mean"))), a(folder_.checkpoint(8)),
      b(folder_.checkpoint(8, "other"));
  const std::string name = "model.embed_tokens.weight";
  const std::vector<float> found = values_of(mean, name), of_a = values_of(a, name), of_b = values_of(b, name);
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], static_cast<float>((static_cast<double>(of_a[i]) + static_cast<double>(of_b[i])) / 2)) << i;
  }
  train({"model.rope_theta=5000.0"}, "turned");
  EXPECT_THAT(test::error_of([&] {
                average({"runs/r/checkpoints/step_000008", "runs/turned/checkpoints/step_000008"}, 0, "m2");
              }),
              AllOf(HasSubstr("is of another model"), HasSubstr("model.rope_theta = ")));
}

TEST_F(Average, WhatHasNoMeanIsRefused) {
  train();
  train({"model.d_ff=40"}, "other");
  const std::string eight = "runs/r/checkpoints/step_000008";
  EXPECT_THAT(refusal({"runs/r"}, 5), HasSubstr("has 4 complete checkpoints, and 5 are to be averaged: run.keep"));
  EXPECT_THAT(refusal({"runs/r"}, 1), HasSubstr("two checkpoints or more"));
  EXPECT_THAT(refusal({eight}), HasSubstr("one checkpoint is no mean"));
  EXPECT_THAT(refusal({eight, eight + "/"}), HasSubstr("is given twice"));
  EXPECT_THAT(refusal({eight, "runs/r"}), HasSubstr("is no complete checkpoint"));
  EXPECT_THAT(refusal({eight, "runs/r/checkpoints/step_000006"}, 2),
              HasSubstr("--last is for the checkpoints of one run"));
  EXPECT_THAT(refusal({eight, "runs/other/checkpoints/step_000008"}),
              AllOf(HasSubstr("is of another model"), HasSubstr("model.d_ff = ")));
  fs::resize_file(folder_.checkpoint(6) / "rank_00000.safetensors", 100);
  EXPECT_THAT(refusal({"runs/r"}), HasSubstr("rank_00000.safetensors"));
}

TEST_F(Average, ListAndVerifyTellWhatARunHas) {
  train();
  fs::create_directory(folder_.path("runs/r/checkpoints/step_000010.tmp"));
  const Result listed = folder_.orthant({"checkpoint", "list", "runs/r", "--json"});
  ASSERT_EQ(listed.code, 0) << listed.error;
  const json all = json::parse(listed.output);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["step"], 2);
  EXPECT_EQ(all[3]["ranks"], 2);
  EXPECT_EQ(all[3]["bytes"], CheckpointReader(folder_.checkpoint(8)).bytes());
  EXPECT_EQ(all[4]["complete"], false);
  EXPECT_THAT(folder_.orthant({"checkpoint", "list", "runs/r"}).output,
              HasSubstr("not complete: a save that was killed"));

  const Result whole = folder_.orthant({"checkpoint", "verify", "runs/r"});
  EXPECT_EQ(whole.code, 0) << whole.output;
  EXPECT_THAT(whole.output, HasSubstr("step_000008: ok, "));
  // One bit of a tensor: only who reads it sees that.
  const fs::path file = folder_.checkpoint(6) / "rank_00001.safetensors";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(-1, std::ios::end);
  const char last = static_cast<char>(bytes.peek());
  bytes.seekp(-1, std::ios::end);
  bytes.put(static_cast<char>(last ^ 1));
  bytes.close();
  EXPECT_THAT(folder_.orthant({"checkpoint", "list", "runs/r"}).output, Not(HasSubstr("rank_00001")));
  const Result damaged = folder_.orthant({"checkpoint", "verify", "runs/r"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.output, AllOf(HasSubstr("step_000008: ok"), HasSubstr("rank_00001.safetensors")));
  EXPECT_EQ(folder_.orthant({"checkpoint", "verify", "runs/r/checkpoints/step_000008"}).code, 0);
  EXPECT_EQ(folder_.orthant({"checkpoint", "verify", "runs/nothing"}).code, 78);
  EXPECT_TRUE(all[3]["tokens"].is_number_integer());
  const Result none = folder_.orthant({"checkpoint", "verify", "runs/r/checkpoints/step_000010.tmp"});
  EXPECT_EQ(none.code, 78);
  EXPECT_THAT(none.error, HasSubstr("nothing was verified"));
}

// A copy under another name: its step would count twice.
TEST_F(Average, AFolderThatWasRenamedIsTold) {
  train();
  fs::copy(folder_.checkpoint(8), folder_.path("runs/r/checkpoints/step_000012"), fs::copy_options::recursive);
  const Result told = folder_.orthant({"checkpoint", "verify", "runs/r"});
  EXPECT_EQ(told.code, 0);
  EXPECT_THAT(told.output, AllOf(HasSubstr("step_000008: ok, "), HasSubstr("; but its manifest is of step 8")));
  EXPECT_THAT(refusal({"runs/r"}, 2), AllOf(HasSubstr("step_000012"), HasSubstr("the folder was renamed")));
}

}  // namespace
}  // namespace orthant::average_test
