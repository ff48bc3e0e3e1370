// Plugins out of tree as tables of a configuration, and runs of them that are saved in the middle.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::keepers_test {

// [plugins.NAME] of a plugin of examples/plugins.
inline std::string table(const std::string& name, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n{}", name, paths::out_of_tree(name), keys);
}

struct Passed {
  std::filesystem::path saved;
  std::vector<double> losses;               // of rank 0's worker
  std::vector<std::vector<float>> weights;  // by rank: all that it owns, group after group
  std::vector<std::string> notes;           // of loading, on rank 0
};

// Loads `from` (empty: the initial weights), takes steps [begin, end), saves under `root`.
inline Passed pass_through(const Config& config, const std::filesystem::path& from, int begin, int end,
                           const std::filesystem::path& root) {
  Passed passed;
  passed.weights.resize(check_layout(config));
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    ParamStore& store = rank.trainer().parameters();
    std::vector<std::string> notes;
    if (!from.empty()) {
      notes = load_checkpoint(CheckpointReader(from), rank.session().plan(), store, rank.stream());
    }
    std::vector<double> losses;
    for (int step = begin; step < end; ++step) {
      losses.push_back(rank.trainer().step(step).loss);
    }
    const std::filesystem::path folder = save_checkpoint(root, end, rank.session().plan(), store, {},
                                                         {communicator, rank.trainer().world()}, rank.stream());
    std::vector<float> owned;
    for (const auto& group : store.groups()) {
      std::vector<float> part(group->owned_elements);
      rank.stream().download(part.data(), group->master);
      owned.insert(owned.end(), part.begin(), part.end());
    }
    const std::lock_guard lock(mutex);
    passed.weights[communicator.rank()] = owned;
    if (communicator.rank() == 0) {
      passed.saved = folder;
      passed.losses = losses;
      passed.notes = notes;
    }
  });
  return passed;
}

inline std::vector<float> read_whole(const CheckpointReader& reader, const std::string& name) {
  const Shape shape = reader.info(name).shape;
  std::vector<std::int64_t> begin, size;
  for (int i = 0; i < shape.rank(); ++i) {
    begin.push_back(0);
    size.push_back(shape[i]);
  }
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  reader.read(name, begin, size, values.data());
  return values;
}

// What the ranks remember of a parameter in a plugin's state that adds up, added up.
inline std::vector<float> summed_state(const std::filesystem::path& checkpoint, const std::string& state,
                                       const std::string& param) {
  const CheckpointReader reader(checkpoint);
  const std::string name = "plugins/" + state + "/" + param;
  const std::vector<float> all = read_whole(reader, name);
  const std::size_t n = all.size() / static_cast<std::size_t>(reader.info(name).shape[0]);
  std::vector<float> sum(n, 0.0f);
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum[i % n] += all[i];
  }
  return sum;
}

// Saved after `middle` steps and resumed, against all of `end` steps in one go: every bit of both, and no note.
inline void expect_resumes(const Config& config, int middle, int end, const std::string& what) {
  const run_test::ProgramFolder folder;
  const Passed first = pass_through(config, {}, 0, middle, folder.path("first"));
  const Passed rest = pass_through(config, first.saved, middle, end, folder.path("rest"));
  const Passed all = pass_through(config, {}, 0, end, folder.path("all"));
  EXPECT_THAT(run_test::differences(rest.saved, all.saved), testing::IsEmpty()) << what;
  EXPECT_EQ(rest.losses, std::vector<double>(all.losses.begin() + middle, all.losses.end())) << what;
  EXPECT_THAT(rest.notes, testing::IsEmpty()) << what;
}

// With SGD of rate 1 and no clipping, weights lose exactly what was sent.
inline test::Overrides plain_sgd() {
  return {R"(optimizer.name="sgd")", "optimizer.lr=1.0",           R"(optimizer.schedule="constant")",
          "optimizer.momentum=0.0",  "optimizer.weight_decay=0.0", "optimizer.clip_grad_norm=0.0"};
}

}  // namespace orthant::keepers_test
