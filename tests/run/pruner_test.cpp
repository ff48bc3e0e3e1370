// Old checkpoints are removed beside the training: nothing waits for it, and what fails is told.
#include "core/run/pruner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "core/checkpoint/checkpoint.h"
#include "tests/data/temporary_folder.h"

namespace orthant::pruner_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Pruning : public testing::Test {
 protected:
  void save(std::int64_t step) const {
    CheckpointWriter writer(root(), step, 0, 1);
    const float value = 1;
    writer.add({"w", DType::f32, {1}, {0}, {1}}, &value);
    writer.commit(std::vector<std::string>{writer.finish()}, {});
  }
  std::set<std::string> left() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(root())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  fs::path root() const { return folder_.path() / "checkpoints"; }
  TemporaryFolder folder_;
};

// The newest two, whatever their steps, and the multiples of 4 for good.
TEST_F(Pruning, KeepsTheMultiplesBesideTheNewest) {
  Pruner pruner(root(), {.newest = 2, .every = 4}, 60);
  for (const std::int64_t step : {2, 4, 5, 6, 8, 9, 10, 11}) {
    pruner.wait();
    save(step);
    pruner.start(step);
  }
  pruner.wait();
  EXPECT_THAT(left(), ElementsAre("step_000004", "step_000008", "step_000010", "step_000011"));
  EXPECT_THAT(pruner.take_warnings(), IsEmpty());
}

TEST_F(Pruning, KeepsTheNewestAndSaysNothing) {
  Pruner pruner(root(), {2}, 60);
  for (const std::int64_t step : {1, 2, 3, 4}) {
    pruner.wait();
    save(step);
    pruner.start(step);
  }
  pruner.wait();
  EXPECT_EQ(left(), (std::set<std::string>{"step_000003", "step_000004"}));
  EXPECT_THAT(pruner.take_warnings(), IsEmpty());
}

// What lies there of later steps is of another way of this run, perhaps damaged: it takes no place of a good one.
TEST_F(Pruning, CheckpointsOfLaterStepsDoNotCount) {
  for (const std::int64_t step : {1, 2, 8, 9}) {
    save(step);
  }
  Pruner pruner(root(), {1}, 60);
  pruner.start(2);
  pruner.wait();
  EXPECT_EQ(left(), (std::set<std::string>{"step_000002", "step_000008", "step_000009"}));
}

// A file that cannot be removed, as on a stale handle: said each time, and the other old ones go nevertheless.
TEST_F(Pruning, WhatCannotBeRemovedIsSaidEachTimeAndKeepsNoOther) {
  Pruner pruner(root(), {1}, 60, Disk([](std::string_view operation, const fs::path& path) {
                  require(operation != "remove" || path.filename() != "step_000002.tmp" || !fs::exists(path),
                          "cannot remove '{}': Stale file handle", path.string());
                }));
  for (const std::int64_t step : {1, 2, 3, 4}) {
    save(step);
  }
  for (int i = 0; i < 2; ++i) {
    pruner.start(4);
    pruner.wait();
    EXPECT_EQ(left(), (std::set<std::string>{"step_000002.tmp", "step_000004"}));
    EXPECT_THAT(pruner.take_warnings(),
                ElementsAre(AllOf(HasSubstr("step_000002.tmp': Stale file handle"), HasSubstr(root().string()))));
    EXPECT_THAT(pruner.take_warnings(), IsEmpty());
  }
}

// The caller goes on while a disk is slow; one that never answers is waited for no longer than the limit, even by the
// destructor, and gets no second thread.
TEST_F(Pruning, ADiskThatDoesNotAnswerHoldsUpNobody) {
  save(1);
  save(2);
  std::promise<void> answer;
  auto begun = std::make_shared<std::atomic<int>>(0);
  {
    Pruner pruner(root(), {1}, 0.05,
                  Disk([begun, answered = answer.get_future().share()](std::string_view, const fs::path&) {
                    ++*begun;
                    answered.wait();
                  }));
    pruner.start(2);
    for (int i = 0; i < 3; ++i) {
      pruner.wait();
      EXPECT_THAT(pruner.take_warnings(), ElementsAre(HasSubstr("has not removed them within 0.05 s")));
      pruner.start(2);
    }
  }
  EXPECT_LE(*begun, 1);
  answer.set_value();
  for (int i = 0; i < 3000 && left().size() > 1; ++i) {  // before the folder goes
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace
}  // namespace orthant::pruner_test
