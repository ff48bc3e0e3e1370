// scripts/check_includes.sh, which every run of the tests begins with, can fail: each arrow of the design bent once.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::includes_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A small tree of its own with the script.
class Includes : public testing::Test {
 protected:
  Includes() {
    fs::create_directories(folder_.path("scripts"));
    for (const char* name : {"check_includes.sh", "check_includes.py", "axis_names_allowed.txt"}) {
      fs::copy(paths::source("scripts") + "/" + name, folder_.path("scripts"));
    }
    for (const char* name : {"core/include/orthant", "router", "experts", "parallel", "offload/files", "plugins/mine",
                             "plugins/other", "plugins/words/deep"}) {
      fs::create_directories(folder_.path(name));
    }
    folder_.write("scripts/rooms.txt",
                  "# Lowest first.\ncore/include\ncore/base\nparallel\ncore/model\nrouter\nexperts\n"
                  "<words.h>: plugins/words\nplugins/words/deep:\nplugins/words: plugins/words/deep\n");
    folder_.write("core/include/orthant/plan.h", "// The plan.\n");
    folder_.write("core/base/private.h", "// Not for plugins.\n");
    folder_.write("plugins/mine/mine.h", "#include <orthant/plan.h>\n");
    folder_.write("plugins/mine/mine.cpp", "#include \"mine.h\"\nORTHANT_PLUGIN(\"mine\", Mine)\n");
    folder_.write("plugins/other/other.h", "#include <vector>\n");
    folder_.write("plugins/words/words.cpp",
                  "#include <words.h>\n#include \"core/base/private.h\"\n#include \"plugins/words/deep/deep.h\"\n");
    folder_.write("plugins/words/deep/deep.h", "#include <orthant/plan.h>\n");
    folder_.write("offload/files/file.h", "#include <orthant/plan.h>\n");
    folder_.write("offload/offload.cpp", "#include \"files/file.h\"\n");
    folder_.write("core/model/model.h", "// Above.\n");
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
  const std::string only = ": a plugin includes <orthant/...> and its own files only";
  expect_refused("plugins/mine/a.cpp", "#include \"core/base/private.h\"\n", "includes core/base/private.h" + only);
  expect_refused("plugins/mine/a.cpp", "#include <core/base/private.h>\n", "includes core/base/private.h" + only);
  expect_refused("plugins/mine/a.cpp", "#include <orthant/secret.h>\n",
                 "includes orthant/secret.h: which is no public");
  expect_refused("plugins/mine/a.cpp", "#include \"plugins/other/other.h\"\n", "includes plugins/other/other.h" + only);
  expect_refused("plugins/mine/a.cpp", "#include \"plugins/mine/mine.h\"\n", "includes plugins/mine/mine.h: by a path");
  expect_refused("offload/a.cpp", "#include \"core/base/private.h\"\n", "includes core/base/private.h" + only);
  expect_refused("offload/a.cpp", "#include \"offload/files/file.h\"\n", "includes offload/files/file.h: by a path");
  expect_refused("plugins/mine/a.cpp", "#include \"offload/files/file.h\"\n", "includes offload/files/file.h" + only);
  expect_refused("core/model/a.cpp", "#include \"offload/files/file.h\"\n",
                 "includes offload/files/file.h, which is in no room");
  expect_refused("core/model/a.cpp", "#include \"plugins/mine/mine.h\"\n",
                 "includes plugins/mine/mine.h, which is in no room");
  expect_refused("core/base/a.cpp", "#include \"core/model/model.h\"\n",
                 "includes core/model/model.h: core/model stands above");
  expect_refused("parallel/local/a.cu", "#include \"core/model/model.h\"\n",
                 "includes core/model/model.h: core/model stands");
}

// A part of Orthant that is loaded when it is needed stands on the core, and nothing of the core on it.
TEST_F(Includes, AModuleOfItsOwnIsAboveTheCoreAndKeepsItsLibraries) {
  expect_refused("core/model/a.cpp", "#include \"plugins/words/deep/deep.h\"\n",
                 "includes plugins/words/deep/deep.h: core/model does not name the app plugins/words/deep");
  expect_refused("plugins/mine/a.cpp", "#include \"plugins/words/deep/deep.h\"\n",
                 "includes plugins/words/deep/deep.h: a plugin includes");
  for (const char* file : {"core/model/a.cpp", "plugins/words/deep/a.cpp", "plugins/mine/a.cpp"}) {
    expect_refused(file, "#include <words.h>\n", "includes words.h: that is for plugins/words alone");
  }
}

TEST_F(Includes, EachFileStandsInARoom) {
  folder_.write("core/loose.cpp", "int x;\n");
  const Result result = check();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, HasSubstr("core/loose.cpp: it stands in no room"));
}

TEST_F(Includes, NamesOfAxesAreRefusedOutsideOfPlugins) {
  for (const char* folder : {"core/base", "router", "experts", "parallel"}) {
    expect_refused(fmt::format("{}/a.cpp", folder), "bool b = axis.name == \"mine\";\n", "names an axis");
    expect_refused(fmt::format("{}/a.cpp", folder), "load(\"plugins.mine.size\");\n", "names an axis");
    expect_refused(fmt::format("{}/a.cpp", folder), "parse(\"[plugins.mine]\");  // \"mine\"\n", "names an axis");
  }
}

TEST_F(Includes, WhatIsListedWithAReasonMayStand) {
  folder_.write("core/base/a.cpp", "bool b = axis.name == \"mine\";\n");
  EXPECT_EQ(check().code, 1);
  folder_.write("scripts/axis_names_allowed.txt", "core/base/a.cpp mine  # a reason\n");
  EXPECT_EQ(check().code, 0);
}

}  // namespace
}  // namespace orthant::run_test::includes_test
