// scripts/check_readmes.sh, which every run of the tests begins with, can fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::readmes_check_test {
namespace {

class ReadmesCheck : public testing::Test {
 protected:
  ReadmesCheck() {
    std::filesystem::create_directories(folder_.path("scripts"));
    std::filesystem::copy(paths::source("scripts/check_readmes.sh"), folder_.path("scripts"));
    for (const char* file : {"core/room/one.h", "core/room/one.cpp", "core/room/inner/two.h", "core/other/three.h"}) {
      folder_.write(file, "");
    }
  }
  Result check(const std::string& readme) {
    folder_.write("core/room/README.md", readme);
    return folder_.command({"bash", "scripts/check_readmes.sh"});
  }
  ProgramFolder folder_;
};

TEST_F(ReadmesCheck, WhatIsThereIsNamed) {
  for (const char* readme : {"Read `one.h`, then `core/other/three.h`, then `three.h`.\n",
                             "| file | what |\n| --- | --- |\n| `one`, `inner/`, `two.h` | `three.h` |\n",
                             "[one.h](one.h) has `words` and `a = 1`.\n"}) {
    const Result result = check(readme);
    EXPECT_EQ(result.code, 0) << readme << result.error;
  }
}

TEST_F(ReadmesCheck, WhatIsLeftOutOrNotThereIsRefused) {
  const std::pair<const char*, const char*> wrong[] = {
      {"Begin with one.\n", "core/room/README.md does not name one.h"},
      {"`one.h`, `four.h`\n", "core/room/README.md:1: there is no four.h"},
      {"| file | what |\n| --- | --- |\n| `one`, `three.h` | |\n", "core/room/README.md:3: there is no three.h below"},
      {"| folder | what |\n| --- | --- |\n| `one/` | `one.h` |\n", "core/room/README.md does not name inner/"}};
  for (const auto& [readme, message] : wrong) {
    const Result result = check(readme);
    EXPECT_EQ(result.code, 1) << readme;
    EXPECT_THAT(result.error, testing::HasSubstr(message));
  }
}

}  // namespace
}  // namespace orthant::run_test::readmes_check_test
