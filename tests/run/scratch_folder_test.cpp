// What a folder for the moment leaves: nothing, whoever dies.
#include "core/run/scratch_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/data/temporary_folder.h"

namespace orthant::scratch_folder_test {
namespace {

namespace fs = std::filesystem;

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(ScratchFolder, GoesWithItsProcessAndWithTheNextOneWhereThatWasKilled) {
  const TemporaryFolder folder;
  const char* before = std::getenv("TMPDIR");
  const std::string old = before != nullptr ? before : "/tmp";
  ASSERT_EQ(setenv("TMPDIR", folder.path().c_str(), 1), 0);
  folder.write("orthant-scratch-notes", "a file of the user's");
  fs::create_directory(folder.path() / "orthant-scratch-mine");  // no lock: not of this program
  const pid_t child = fork();
  if (child == 0) {
    const ScratchFolder killed;
    std::ofstream(killed.path() / "weights") << "half of them";
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(entries(folder.path()), 3u);
  {
    const ScratchFolder held;
    EXPECT_EQ(entries(folder.path()), 3u);
    const ScratchFolder other;
    EXPECT_TRUE(fs::exists(held.path()));
    EXPECT_EQ(entries(folder.path()), 4u);
  }
  EXPECT_EQ(entries(folder.path()), 2u);
  setenv("TMPDIR", old.c_str(), 1);
}

}  // namespace
}  // namespace orthant::scratch_folder_test
