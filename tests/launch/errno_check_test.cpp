// scripts/check_errno.sh, which every run of the tests begins with, can fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::errno_check_test {
namespace {

class ErrnoCheck : public testing::Test {
 protected:
  ErrnoCheck() {
    std::filesystem::create_directories(folder_.path("scripts"));
    std::filesystem::copy(paths::source("scripts/check_errno.sh"), folder_.path("scripts"));
  }
  Result check(const std::string& code) {
    folder_.write("core/a.cpp", code);
    return folder_.command({"bash", "scripts/check_errno.sh"});
  }
  ProgramFolder folder_;
};

// Not in one word: the check reads this file too.
const std::string call = std::string("require") + "(";

TEST_F(ErrnoCheck, AReasonThatIsReadInTimePasses) {
  const Result result = check("void f() {\n  " + call + "x > 0, \"x is {}\",\n          x);\n" +
                              "  if (g() != 0) {\n    fail(strerror(errno));\n  }\n}\n");
  EXPECT_EQ(result.code, 0) << result.error;
}

TEST_F(ErrnoCheck, AReasonThatIsReadBeforeTheCallIsRefused) {
  for (const char* rest : {"\"{}\", strerror(errno));", "\"cannot g: {}\",\n          std::strerror(errno));"}) {
    const Result result = check("void f() {\n  " + call + "g() == 0, " + rest + "\n}\n");
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.error, testing::HasSubstr("errno: core/a.cpp:2: "));
  }
}

}  // namespace
}  // namespace orthant::run_test::errno_check_test
