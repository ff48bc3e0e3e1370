// Plugins out of tree as tables of a configuration, and runs of them that are saved in the middle.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

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

}  // namespace orthant::keepers_test
