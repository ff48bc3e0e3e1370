// When ./launch and ./runtests compile the CUDA code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::cuda_settings_test {
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
                                "'; unset ORTHANT_NO_CUDA; export PATH=$PWD/bin:/usr/bin:/bin " + variables +
                                "; cuda_settings cache"});
  }
  ProgramFolder folder_;
};

TEST_F(CudaSettings, AToolkitThatCanIsUsed) {
  EXPECT_EQ(ask("13.0").output, "-DORTHANT_CUDA=ON\n");
  folder_.write("cache", "ORTHANT_CUDA:BOOL=OFF\n");
  EXPECT_EQ(ask("14.2").output, "-DORTHANT_CUDA=ON\n") << "found since the last time";
  EXPECT_EQ(ask("12.4").output, "-DORTHANT_CUDA=ON\n");
  EXPECT_EQ(ask("12.10").output, "-DORTHANT_CUDA=ON\n") << "a number of two digits is none of one";
  folder_.write("cache", "ORTHANT_CUDA:BOOL=ON\n");
  EXPECT_EQ(ask("13.0").output, "") << "nothing to do";
}

TEST_F(CudaSettings, AnOlderOneIsSaidOnce) {
  const Result first = ask("12.3");
  EXPECT_EQ(first.code, 0);
  EXPECT_EQ(first.output, "");
  EXPECT_THAT(first.error, testing::HasSubstr("nvcc is of CUDA 12.3, 12.4 or newer is needed"));
  folder_.write("cache", "ORTHANT_CUDA:BOOL=OFF\n");
  EXPECT_EQ(ask("12.3").error, "");
  EXPECT_EQ(ask("11.8").output, "");
}

TEST_F(CudaSettings, NoneOrNotWanted) {
  EXPECT_EQ(ask("").output, "");
  EXPECT_EQ(ask("").code, 0);
  EXPECT_EQ(ask("13.0", "ORTHANT_NO_CUDA=1").output, "");
}

class GpusOfTests : public CudaSettings {
 protected:
  // `said`: what nvidia-smi answers.
  std::string ask_gpus(const std::string& function, const std::string& said) {
    folder_.write("bin/nvidia-smi", "#!/bin/sh\n" + said + "\n");
    std::filesystem::permissions(folder_.path("bin/nvidia-smi"), std::filesystem::perms::owner_all);
    return folder_
        .command({"bash", "-c",
                  "root=$PWD; unset ORTHANT_KERNELS; set -euo pipefail; source '" + paths::source("scripts/common.sh") +
                      "'; export PATH=$PWD/bin:/usr/bin:/bin; " + function + " cache"})
        .output;
  }
};

TEST_F(GpusOfTests, AreThatOfThisMachineOrHopper) {
  EXPECT_EQ(ask_gpus("gpus_of_tests", "exit 1"), "-DORTHANT_KERNELS=sample\n-DORTHANT_GPUS=90a-real\n");
  EXPECT_EQ(ask_gpus("ORTHANT_KERNELS=all; gpus_of_tests", "exit 1"),
            "-DORTHANT_KERNELS=all\n-DORTHANT_GPUS=90a-real\n");
  EXPECT_EQ(ask_gpus("gpus_of_tests", "echo 9.0"), "-DORTHANT_GPUS=90a-real\n");
  EXPECT_EQ(ask_gpus("gpus_of_tests", "echo 8.6; echo 8.6"), "-DORTHANT_GPUS=86-real\n");
  EXPECT_EQ(ask_gpus("gpus_of_tests", "echo 10.3"), "-DORTHANT_GPUS=103-real\n") << "no nvcc that knows 100f";
  ask("13.0");
  EXPECT_EQ(ask_gpus("gpus_of_tests", "echo 10.3"), "-DORTHANT_GPUS=100f-real\n") << "Blackwell's own instructions";
  EXPECT_EQ(ask_gpus("gpus_of_tests", "echo 12.0"), "-DORTHANT_GPUS=120-real\n");
  folder_.write("cache", "ORTHANT_CUDA:BOOL=ON\n");
  EXPECT_EQ(ask_gpus("gpus_of_tests", "echo 9.0"), "") << "what is configured stays";
}

TEST_F(GpusOfTests, AreAllAgainForARun) {
  EXPECT_EQ(ask_gpus("all_gpus_again", "exit 1"), "") << "nothing is configured: CMake's default is all";
  folder_.write("cache", "ORTHANT_GPUS:STRING=90a-real\n");
  EXPECT_EQ(ask_gpus("all_gpus_again", "exit 1"), "-DORTHANT_GPUS=all\n");
  folder_.write("cache", "ORTHANT_GPUS:STRING=all\nORTHANT_KERNELS:STRING=sample\n");
  EXPECT_EQ(ask_gpus("all_gpus_again", "exit 1"), "-DORTHANT_KERNELS=all\n");
  folder_.write("cache", "ORTHANT_GPUS:STRING=all\nORTHANT_KERNELS:STRING=all\n");
  EXPECT_EQ(ask_gpus("all_gpus_again", "exit 1"), "");
}

class NamesCuda : public testing::Test {
 protected:
  bool names(const std::string& arguments) {
    const Result result = folder_.command(
        {"bash", "-c",
         "root=$PWD; set -euo pipefail; source '" + paths::source("scripts/common.sh") + "'; names_cuda " + arguments});
    EXPECT_THAT(result.code, testing::AnyOf(0, 1)) << result.error;
    return result.code == 0;
  }
  ProgramFolder folder_;
};

TEST_F(NamesCuda, AsAnArgument) {
  folder_.write("a.toml", "[run]\ndevice = \"cpu\"\n");
  EXPECT_FALSE(names("a.toml --set run.steps=2"));
  EXPECT_TRUE(names("a.toml --set 'run.device=\"cuda\"'"));
  EXPECT_TRUE(names("a.toml --set run.communicator=nccl"));
}

TEST_F(NamesCuda, InAConfigurationOrOneThatItExtends) {
  folder_.write("base/gpu.toml", "[run]\ndevice = 'cuda'\n");
  folder_.write("base/cpu.toml", "");
  folder_.write("own.toml", "extends = [\n  \"base/cpu.toml\",\n  \"base/gpu.toml\",\n]\n");
  folder_.write("other.toml", "extends = [\"base/cpu.toml\"]\n");
  EXPECT_TRUE(names("--dry-run own.toml"));
  EXPECT_FALSE(names("other.toml"));
  EXPECT_FALSE(names("missing.toml"));
  EXPECT_TRUE(names("'" + paths::source("configs/olmoe_1b.toml") + "'"));
  EXPECT_FALSE(names("'" + paths::source("configs/quickstart.toml") + "'"));
}

}  // namespace
}  // namespace orthant::run_test::cuda_settings_test
