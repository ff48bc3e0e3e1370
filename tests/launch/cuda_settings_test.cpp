// When ./launch and ./runtests compile the CUDA code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test {
namespace {

class CudaSettings : public testing::Test {
 protected:
  // What cuda_settings says where nvcc is of this version; empty: there is none.
  Result ask(const std::string& version, const std::string& variables = "") {
    const std::string nvcc = "bin/nvcc";
    std::filesystem::remove(folder_.path(nvcc));
    folder_.write("bin/README", "");
    if (!version.empty()) {
      folder_.write(nvcc, "#!/bin/sh\necho 'Cuda compilation tools, release " + version + ", V" + version + ".88'\n");
      std::filesystem::permissions(folder_.path(nvcc), std::filesystem::perms::owner_all);
    }
    return folder_.command({"bash", "-c",
                            "root=$PWD; set -euo pipefail; source '" + paths::source("scripts/common.sh") +
                                "'; export PATH=$PWD/bin:/usr/bin:/bin " + variables + "; cuda_settings cache"});
  }
  ProgramFolder folder_;
};

TEST_F(CudaSettings, AToolkitThatCanIsUsed) {
  EXPECT_EQ(ask("13.0").output, "-DORTHANT_CUDA=ON\n");
  folder_.write("cache", "ORTHANT_CUDA:BOOL=OFF\n");
  EXPECT_EQ(ask("14.2").output, "-DORTHANT_CUDA=ON\n") << "found since the last time";
  folder_.write("cache", "ORTHANT_CUDA:BOOL=ON\n");
  EXPECT_EQ(ask("13.0").output, "") << "nothing to do";
}

TEST_F(CudaSettings, AnOlderOneIsSaidOnce) {
  const Result first = ask("12.4");
  EXPECT_EQ(first.code, 0);
  EXPECT_EQ(first.output, "");
  EXPECT_THAT(first.error, testing::HasSubstr("nvcc is of CUDA 12, 13 or newer is needed"));
  folder_.write("cache", "ORTHANT_CUDA:BOOL=OFF\n");
  EXPECT_EQ(ask("12.4").error, "");
}

TEST_F(CudaSettings, NoneOrNotWanted) {
  EXPECT_EQ(ask("").output, "");
  EXPECT_EQ(ask("").code, 0);
  EXPECT_EQ(ask("13.0", "ORTHANT_NO_CUDA=1").output, "");
}

}  // namespace
}  // namespace orthant::run_test
