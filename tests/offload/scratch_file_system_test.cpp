// The file of tensors where the disk is too small or not there, and where the system refuses what is asked first.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "offload/files/scratch_file.h"
#include "tests/offload/child_process.h"
#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::scratch_file_system_test {
namespace {

using namespace orthant::offload;
using orthant::launch_test::TemporaryFolder;
using orthant::offload_test::in_child;
using orthant::offload_test::refuse_calls;
using orthant::test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t block = 16 << 10;

class ScratchFileSystem : public testing::Test {
 protected:
  ScratchFileOptions options(std::int64_t bytes, Engine engine = Engine::any) const {
    return {.directory = folder_.path(), .bytes = bytes, .rank = 3, .engine = engine, .block_bytes = block, .depth = 4};
  }
  std::string refusal(const ScratchFileOptions& asked) const {
    return error_of<SettingError>([&] { ScratchFile{asked}; });
  }
  // What the file system of this test can.
  std::string direct_here() const { return ScratchFile(options(block)).direct() ? " direct" : ""; }
  std::string reserved_here() const { return ScratchFile(options(block)).reserved() ? " reserved" : ""; }
  bool nothing_is_left() const { return std::filesystem::is_empty(folder_.path()); }

  TemporaryFolder folder_;
};

TEST_F(ScratchFileSystem, TooLittleRoomIsSaidBeforeAnythingIsTaken) {
  const std::string error = refusal(options(std::int64_t{1} << 50));
  EXPECT_THAT(error, StartsWith(fmt::format("rank 3: its scratch file in '{}' needs 1125899906842624 bytes (1048576.0 "
                                            "GiB), and ",
                                            folder_.path().string())));
  EXPECT_THAT(error, HasSubstr("set plugins.offload.directory to a directory of a larger disk"));
  EXPECT_TRUE(nothing_is_left());
}

// Where room cannot be taken, a file of any size could be made.
TEST_F(ScratchFileSystem, TooLittleRoomIsSaidWhereItCannotBeTaken) {
  const auto available = static_cast<std::int64_t>(std::filesystem::space(folder_.path()).available);
  EXPECT_THAT(in_child([&] {
                return refuse_calls({{SYS_fallocate, EOPNOTSUPP}})
                           ? refusal(options(aligned_up(available + available / 2)))
                           : "are free there";
              }),
              HasSubstr("are free there"));
}

TEST_F(ScratchFileSystem, ADiskThatFillsMeanwhileIsSaid) {
  EXPECT_THAT(in_child([&] {
                return refuse_calls({{SYS_fallocate, ENOSPC}}) ? refusal(options(block)) : "No space left on device";
              }),
              HasSubstr("No space left on device"));
}

TEST_F(ScratchFileSystem, ADirectoryThatCannotBeUsedIsSaid) {
  const auto expect_refused = [&](const std::string& folder, const std::string& why) {
    ScratchFileOptions asked = options(block);
    asked.directory = folder;
    EXPECT_THAT(refusal(asked),
                StartsWith(fmt::format("rank 3: cannot make a scratch file in '{}': {}. Make a directory "
                                       "there that this user may write in, on every machine, or set "
                                       "plugins.offload.directory",
                                       folder, why)));
  };
  expect_refused(folder_.path() / "none", "No such file or directory");
  expect_refused("", "No such file or directory");
  std::ofstream(folder_.path() / "file") << "x";
  expect_refused(folder_.path() / "file", "Not a directory");
}

TEST_F(ScratchFileSystem, ADirectoryOfAnotherUserIsSaid) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(in_child([&] {
                if (getuid() == 0 && setuid(65534) != 0) {
                  return std::string("no other user");
                }
                return refusal(options(block));
              }),
              HasSubstr("Permission denied. Make a directory"));
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_all);
}

TEST_F(ScratchFileSystem, ALimitOfFileSizesIsSaid) {
  const auto limit = [](std::int64_t bytes) {
    const rlimit set{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    setrlimit(RLIMIT_FSIZE, &set);
  };
  EXPECT_THAT(in_child([&] {
                limit(block);
                return refusal(options(2 * block));
              }),
              HasSubstr("needs 32768 bytes (0.0 MiB), files may have 16384 bytes (0.0 MiB) at most: raise the limit"));
  for (const Engine engine : {Engine::any, Engine::threads}) {
    EXPECT_THAT(in_child([&] {
                  std::signal(SIGXFSZ, SIG_IGN);
                  ScratchFile file(options(4 * block, engine));
                  AlignedBuffer memory(4 * block);
                  limit(block);
                  return error_of([&] { file.write(0, memory.data(), 4 * block)->wait(); });
                }),
                HasSubstr("File too large. Raise the limit of file sizes (ulimit -f)"));
  }
}

// What a file still does where the system refuses the first choice; "no filter" where that cannot be tried.
std::string with_refused(const ScratchFileOptions& options, const std::vector<offload_test::Refusal>& refusals) {
  return in_child([&]() -> std::string {
    if (!refuse_calls(refusals)) {
      return "no filter";
    }
    ScratchFile file(options);
    AlignedBuffer image(file.bytes()), found(file.bytes());
    std::memset(image.data(), 9, static_cast<std::size_t>(image.bytes()));
    file.write(0, image.data(), image.bytes())->wait();
    file.read(0, found.data(), found.bytes())->wait();
    return fmt::format(
        "{}{}{}{}{}", file.engine(), file.why_no_uring().empty() ? "" : " refused", file.direct() ? " direct" : "",
        file.reserved() ? " reserved" : "",
        std::memcmp(image.data(), found.data(), static_cast<std::size_t>(image.bytes())) == 0 ? "" : " bad");
  });
}

TEST_F(ScratchFileSystem, WithoutIoUringThereAreThreads) {
  const std::string rest = direct_here() + reserved_here();
  for (const int call : {SYS_io_uring_setup, SYS_io_uring_enter}) {
    for (const int error : {EPERM, ENOSYS, ENOMEM}) {
      const std::string found = with_refused(options(9 * block), {{call, error}});
      EXPECT_TRUE(found == "threads refused" + rest || found == "no filter") << found;
    }
  }
  EXPECT_THAT(with_refused(options(block, Engine::uring), {{SYS_io_uring_setup, EPERM}}),
              testing::AnyOf(StartsWith("rank 3: io_uring was asked for and cannot be had: "), "no filter"));
}

TEST_F(ScratchFileSystem, AFileSystemThatCanLessWillDo) {
  const std::string direct = direct_here(), reserved = reserved_here();
  constexpr unsigned tmpfile = O_TMPFILE & ~static_cast<unsigned>(O_DIRECTORY);
  const ScratchFileOptions asked = options(9 * block, Engine::threads);
  const auto expect = [&](const offload_test::Refusal& refusal, const std::string& what) {
    const std::string found = with_refused(asked, {refusal});
    EXPECT_TRUE(found == what || found == "no filter") << found << ", expected " << what;
    EXPECT_TRUE(nothing_is_left());
  };
  expect({SYS_openat, EOPNOTSUPP, 2, tmpfile}, "threads" + direct + reserved);
  expect({SYS_fallocate, EOPNOTSUPP}, "threads" + direct);
  expect({SYS_fcntl, EINVAL, 2, O_DIRECT}, "threads" + reserved);
}

}  // namespace
}  // namespace orthant::scratch_file_system_test
