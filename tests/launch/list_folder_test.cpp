#include "core/base/list_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::list_folder_test {
namespace {

// A folder that breaks while it is read cannot be made here: what is tested is that no way to fail throws.
TEST(ListFolder, NamesAllOrSaysWhyNot) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "a") << "x";
  std::filesystem::create_directory(folder.path() / "b");
  std::error_code error;
  EXPECT_THAT(list_folder(folder.path(), error),
              testing::UnorderedElementsAre(folder.path() / "a", folder.path() / "b"));
  EXPECT_FALSE(error);
  for (const char* name : {"a", "none"}) {
    EXPECT_TRUE(list_folder(folder.path() / name, error).empty());
    EXPECT_TRUE(error) << name;
  }
  EXPECT_TRUE(list_folder(folder.path() / "b", error).empty());
  EXPECT_FALSE(error) << "of this call";
}

}  // namespace
}  // namespace orthant::launch_test::list_folder_test
