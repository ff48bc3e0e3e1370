// scripts/check_includes.sh, which every run of the tests begins with, can fail: each arrow of the design bent once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A small tree of its own with the script.
class Includes : public testing::Test {
 protected:
  Includes() {
    fs::create_directories(folder_.path("scripts"));
    for (const char* name : {"check_includes.sh", "axis_names_allowed.txt"}) {
      fs::copy(paths::source("scripts") + "/" + name, folder_.path("scripts"));
    }
    for (const char* name :
         {"core/include/orthant", "router", "experts", "parallel", "plugins/mine", "plugins/other"}) {
      fs::create_directories(folder_.path(name));
    }
    folder_.write("core/include/orthant/plan.h", "// The plan.\n");
    folder_.write("core/private.h", "// Not for plugins.\n");
    folder_.write("plugins/mine/mine.h", "#include <orthant/plan.h>\n");
    folder_.write("plugins/mine/mine.cpp", "#include \"mine.h\"\nORTHANT_PLUGIN(\"mine\", Mine)\n");
    folder_.write("plugins/other/other.h", "#include <vector>\n");
    folder_.write("core/model/model.cpp", "#include <orthant/plan.h>\nint x;  // of the axis \"mine\", say\n");
  }
  Result check() { return folder_.command({"bash", "scripts/check_includes.sh"}); }
  // With `text` in `file` the check fails and says `why`.
  void expect_refused(const std::string& file, const std::string& text, const std::string& why) {
    folder_.write(file, text);
    const Result result = check();
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.error, HasSubstr(fmt::format("includes: {}:1: {}", file, why)));
    fs::remove(folder_.path(file));
  }
  ProgramFolder folder_;
};

TEST_F(Includes, ASoundTreePasses) {
  const Result result = check();
  EXPECT_EQ(result.code, 0) << result.error;
}

TEST_F(Includes, EachBentArrowIsRefused) {
  expect_refused("plugins/mine/a.cpp", "#include \"core/private.h\"\n", "includes \"core/private.h\"");
  expect_refused("plugins/mine/a.cpp", "#include <core/private.h>\n", "includes <core/private.h>");
  expect_refused("plugins/mine/a.cpp", "#include <orthant/secret.h>\n", "includes <orthant/secret.h>");
  expect_refused("plugins/mine/a.cpp", "#include \"plugins/other/other.h\"\n", "includes \"plugins/other/other.h\"");
  expect_refused("core/a.cpp", "#include \"plugins/mine/mine.h\"\n", "includes plugins/mine/mine.h");
  expect_refused("parallel/a.cpp", "#include \"plugins/mine/mine.h\"\n", "includes plugins/mine/mine.h");
  expect_refused("router/a.cpp", "#include <orthant/group.h>\n", "includes orthant/group.h");
  expect_refused("experts/a.cpp", "#include \"parallel/group.h\"\n", "includes parallel/group.h");
}

TEST_F(Includes, NamesOfAxesAreRefusedOutsideOfPlugins) {
  for (const char* folder : {"core", "router", "experts", "parallel"}) {
    expect_refused(fmt::format("{}/a.cpp", folder), "bool b = axis.name == \"mine\";\n", "names an axis");
    expect_refused(fmt::format("{}/a.cpp", folder), "load(\"plugins.mine.size\");\n", "names an axis");
    expect_refused(fmt::format("{}/a.cpp", folder), "parse(\"[plugins.mine]\");  // \"mine\"\n", "names an axis");
  }
}

TEST_F(Includes, WhatIsListedWithAReasonMayStand) {
  folder_.write("core/a.cpp", "bool b = axis.name == \"mine\";\n");
  EXPECT_EQ(check().code, 1);
  folder_.write("scripts/axis_names_allowed.txt", "core/a.cpp mine  # a reason\n");
  EXPECT_EQ(check().code, 0);
}

}  // namespace
}  // namespace orthant::run_test
