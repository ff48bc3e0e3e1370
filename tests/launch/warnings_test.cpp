// Compilers learn new warnings: whoever installs is told of them, and no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::warnings_test {
namespace {

using testing::HasSubstr;

// The options that a small project gets from ours.
class Warnings : public testing::Test {
 protected:
  Warnings() {
    folder_.write("CMakeLists.txt",
                  "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES CXX)\nset(ORTHANT_CCACHE OFF)\n"
                  "include(GNUInstallDirs)\ninclude(\"" +
                      paths::source("cmake/OrthantOptions.cmake") +
                      "\")\nadd_library(p OBJECT p.cpp)\ntarget_link_libraries(p PRIVATE orthant_options)\n");
    folder_.write("p.cpp", "int f(int unused) { return 0; }\n");
  }
  Result build(const std::vector<std::string>& options) {
    std::vector<std::string> words = {"cmake", "-S", ".", "-B", "build", "-G", ORTHANT_GENERATOR};
    words.insert(words.end(), options.begin(), options.end());
    const Result configured = folder_.command(words);
    return configured.code != 0 ? configured : folder_.command({"cmake", "--build", "build"});
  }
  ProgramFolder folder_;
};

TEST_F(Warnings, FailNoBuildUnlessAskedTo) {
  const Result told = build({});
  EXPECT_EQ(told.code, 0) << told.error;
  EXPECT_THAT(told.output + told.error, HasSubstr("unused parameter"));
  const Result failed = build({"-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"});
  EXPECT_NE(failed.code, 0) << failed.output;
}

TEST_F(Warnings, AreErrorsInNoOtherPlace) {
  const Result found =
      folder_.command({"grep", "-rn", "--include=CMakeLists.txt", "--include=*.cmake", "-e",
                       std::string("-W") + "error", paths::source("CMakeLists.txt"), paths::source("cmake"),
                       paths::source("tests"), paths::source("plugins"), paths::source("offload")});
  // Where warnings are errors, nvcc needs words of its own.
  for (std::size_t begin = 0, end; (end = found.output.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EXPECT_THAT(found.output.substr(begin, end - begin), HasSubstr("OrthantCuda.cmake"));
  }
}

}  // namespace
}  // namespace orthant::run_test::warnings_test
