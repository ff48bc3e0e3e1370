#include "parallel/launch/start_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <map>
#include <memory>

#include <orthant/error.h>

#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::start_secret_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

EnvironmentLookup with(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  };
}

ExternalRank rank_of(int rank, const std::string& key) {
  ExternalRank found;
  found.launcher = "torchrun";
  found.rank = rank;
  found.world_size = 2;
  found.run_key = key;
  return found;
}

std::size_t files_in(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    count += entry.is_regular_file() ? 1 : 0;
  }
  return count;
}

TEST(StartSecret, OfRanksOfThisProcessIsNewEachTime) {
  const StartSecret one(with({})), other(with({}));
  ASSERT_EQ(one.variables().size(), 1u);
  EXPECT_EQ(one.variables()[0].first, "ORTHANT_SECRET");
  EXPECT_EQ(one.place().value.size(), 32u);  // 128 bits
  EXPECT_NE(one.place().value, other.place().value);
}

TEST(StartSecret, TheUsersIsTakenWhereItIsLongEnough) {
  const TemporaryFolder folder;
  const std::string given(40, 'g');
  EXPECT_EQ(StartSecret(with({{"ORTHANT_SECRET", given}})).place().value, given);
  for (const int rank : {0, 1}) {
    const StartSecret of_rank(with({{"ORTHANT_SECRET", given}}), rank_of(rank, "k"), folder.path() / "x", false);
    EXPECT_EQ(of_rank.place().value, given);
  }
  EXPECT_EQ(files_in(folder.path()), 0u);
  EXPECT_THAT(orthant::test::error_of([&] {
                StartSecret(with({{"ORTHANT_SECRET", "hunter2"}}));
              }),
              AllOf(HasSubstr("at least 32 are needed"), Not(HasSubstr("hunter2"))));
  EXPECT_THROW(StartSecret(with({{"ORTHANT_SECRET", "hunter2"}})), ConfigError);
}

TEST(StartSecret, UnderAnotherLauncherRankZeroLeavesItInAFileOfThisUserAlone) {
  const TemporaryFolder folder;
  const std::filesystem::path run = folder.path() / "runs" / "x";
  const StartSecret later(with({}), rank_of(1, "k"), run, false);
  EXPECT_EQ(later.place().value, "");
  EXPECT_EQ(read_secret(later.place()), std::nullopt);
  auto first = std::make_unique<StartSecret>(with({}), rank_of(0, "k"), run, false);
  EXPECT_EQ(read_secret(later.place()), first->place().value);
  struct stat status {};
  ASSERT_EQ(stat(later.place().file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  EXPECT_EQ(files_in(folder.path()), 1u);

  const StartSecret beside(with({}), rank_of(1, "another start"), run, false);
  EXPECT_EQ(read_secret(beside.place()), std::nullopt);
  first.reset();
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(StartSecret, WhatAnEarlierStartWasKilledWithIsReplaced) {
  const TemporaryFolder folder;
  const std::filesystem::path run = folder.path() / "x";
  const StartSecret later(with({}), rank_of(1, "k"), run, false);
  std::ofstream(later.place().file) << std::string(32, 's');
  std::filesystem::permissions(later.place().file, std::filesystem::perms::owner_all);
  const StartSecret first(with({}), rank_of(0, "k"), run, false);
  EXPECT_EQ(read_secret(later.place()), first.place().value);
  EXPECT_NE(read_secret(later.place()), std::string(32, 's'));
}

TEST(StartSecret, ADryRunWritesNothing) {
  const TemporaryFolder folder;
  const StartSecret first(with({}), rank_of(0, "k"), folder.path() / "runs" / "x", true);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace orthant::launch_test::start_secret_test
