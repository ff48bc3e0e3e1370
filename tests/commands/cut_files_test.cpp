// A file that is cut short while it is mapped ends the process with words, not with a signal alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/cut_files.h"
#include "core/base/mapped_file.h"

namespace orthant::run_test {
namespace {

namespace fs = std::filesystem;

std::byte read_behind_a_cut(const fs::path& path) {
  explain_cut_files();
  const MappedFile file(path);
  fs::resize_file(path, 0);
  return *const_cast<const volatile std::byte*>(&file.bytes().back());
}

TEST(CutFiles, AreNamed) {
  const fs::path path = fs::path(testing::TempDir()) / "cut file.bin";
  std::ofstream(path) << std::string(3 << 20, 'x');
  EXPECT_EXIT(read_behind_a_cut(path), testing::ExitedWithCode(1),
              "orthant: '.*cut file.bin' was cut short while it was read");
  fs::remove(path);
}

TEST(CutFiles, AndOtherBusErrorsStaySignals) {
  EXPECT_EXIT(
      {
        explain_cut_files();
        std::raise(SIGBUS);
        std::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace orthant::run_test
