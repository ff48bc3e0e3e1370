// Which CUDA toolkits a build takes (cmake/OrthantCudaToolkit.cmake), and scripts/check_cuda_versions.sh: no toolkit is
// needed, an nvcc here only says its release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::cuda_toolkit_test {
namespace {

using testing::HasSubstr;

// CMake breaks the lines of an error where it likes.
std::string in_one_line(const std::string& text) {
  return std::regex_replace(text, std::regex("\\s+"), " ");
}

class CudaToolkit : public testing::Test {
 protected:
  void add(const std::string& folder, const std::string& release) {
    const std::string nvcc = folder + "/bin/nvcc";
    folder_.write(nvcc, "#!/bin/sh\necho 'Cuda compilation tools, release " + release + ", V" + release + ".1'\n");
    std::filesystem::permissions(folder_.path(nvcc), std::filesystem::perms::owner_all);
  }
  Result build_with(const std::string& release) {
    add("one", release);
    return folder_.command({"cmake", "-P", paths::source("cmake/OrthantCudaToolkit.cmake")},
                           {"CUDACXX=" + folder_.path("one/bin/nvcc").string()});
  }
  // Where /usr/local is a folder of this test.
  Result check(const std::string& arguments) {
    return folder_.command(
        {"bash", "-c",
         "export ORTHANT_CUDA_FOLDERS=$PWD; '" + paths::source("scripts/check_cuda_versions.sh") + "' " + arguments});
  }
  ProgramFolder folder_;
};

TEST_F(CudaToolkit, AnOlderOneIsRefusedInWords) {
  for (const char* release : {"11.8", "12.0", "12.3"}) {
    const Result result = build_with(release);
    EXPECT_NE(result.code, 0) << release;
    EXPECT_THAT(in_one_line(result.error),
                HasSubstr(std::string("is of CUDA ") + release + ", and 12.4 or newer is needed"));
    EXPECT_THAT(result.error, HasSubstr("CUDACXX="));
  }
}

TEST_F(CudaToolkit, EachMakesCodeForTheGpusThatItKnows) {
  EXPECT_THAT(build_with("12.4").error, HasSubstr("CUDA 12.4: 80;90a-real\n"));
  EXPECT_THAT(build_with("12.8").error, HasSubstr("CUDA 12.8: 80;90a-real;120-real\n"));
  EXPECT_THAT(build_with("12.9").error, HasSubstr("CUDA 12.9: 80;90a-real;100f-real;120-real\n"));
  EXPECT_THAT(build_with("12.10").error, HasSubstr("CUDA 12.10: 80;90a-real;100f-real;120-real\n"));
  EXPECT_THAT(build_with("13.0").error, HasSubstr("CUDA 13.0: 80;90a-real;100f-real;120-real\n"));
}

TEST_F(CudaToolkit, ThoseThatAreHereAreFoundOldestFirst) {
  add("cuda-13.0", "13.0");
  add("cuda-12.4", "12.4");
  const Result result = check("--list");
  EXPECT_EQ(result.code, 0) << result.error;
  const std::size_t older = result.error.find("CUDA 12.4: 80;90a-real"), newer = result.error.find("CUDA 13.0: 80;90a");
  EXPECT_NE(older, std::string::npos) << result.error;
  EXPECT_NE(newer, std::string::npos) << result.error;
  EXPECT_LT(older, newer);
}

TEST_F(CudaToolkit, OneThatIsTooOldFailsTheCheckAndNoneDoesNot) {
  const Result none = check("");
  EXPECT_EQ(none.code, 0) << none.error;
  EXPECT_THAT(none.error, HasSubstr("no CUDA toolkit is here"));
  add("cuda-11.8", "11.8");
  const Result old = check("");
  EXPECT_EQ(old.code, 1);
  EXPECT_THAT(old.error, HasSubstr("12.4 or newer is needed"));
  EXPECT_THAT(check("--nonsense").error, HasSubstr("unknown option --nonsense"));
  EXPECT_THAT(check("/nowhere").error, HasSubstr("/nowhere: there is no bin/nvcc"));
}

}  // namespace
}  // namespace orthant::run_test::cuda_toolkit_test
