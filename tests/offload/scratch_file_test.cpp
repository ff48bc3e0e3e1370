// The file of tensors on a disk: what is written comes back, on each engine, and nothing is left behind.
#include "offload/files/scratch_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/offload/child_process.h"
#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::scratch_file_test {
namespace {

using namespace orthant::offload;
using orthant::launch_test::eventually;
using orthant::launch_test::TemporaryFolder;
using orthant::test::error_of;
using ::testing::HasSubstr;

using Transfers = std::vector<std::shared_ptr<Transfer>>;

class OnEachEngine : public testing::TestWithParam<Engine> {
 protected:
  OnEachEngine() {
    std::string why;
    if (GetParam() == Engine::uring && !make_uring_engine(1, why)) {
      refusal_ = why;
    }
  }
  void SetUp() override {
    if (!refusal_.empty()) {
      GTEST_SKIP() << "no io_uring: " << refusal_;
    }
  }
  ScratchFileOptions options(std::int64_t bytes) const {
    return {.directory = folder_.path(),
            .bytes = bytes,
            .rank = 3,
            .engine = GetParam(),
            .block_bytes = 64 << 10,
            .depth = 4};
  }
  bool nothing_is_left() const { return std::filesystem::is_empty(folder_.path()); }

  TemporaryFolder folder_;

 private:
  std::string refusal_;
};

INSTANTIATE_TEST_SUITE_P(Engines, OnEachEngine, testing::Values(Engine::uring, Engine::threads),
                         [](const auto& tested) { return tested.param == Engine::uring ? "IoUring" : "Threads"; });

// Ranges that cover the file, of any number of pages, in any order.
std::vector<std::pair<std::int64_t, std::int64_t>> cut(std::int64_t bytes, std::mt19937& random) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (std::int64_t offset = 0; offset < bytes;) {
    const std::int64_t length = std::min<std::int64_t>((random() % 80) * file_alignment, bytes - offset);
    ranges.emplace_back(offset, length);  // sometimes nothing
    offset += length;
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  return ranges;
}

void fill(AlignedBuffer& buffer, unsigned seed) {
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < buffer.bytes(); i += 8) {
    const std::uint64_t value = random();
    std::memcpy(buffer.data() + i, &value, 8);
  }
}

void wait_for(const Transfers& transfers) {
  for (const auto& transfer : transfers) {
    transfer->wait();
    EXPECT_TRUE(transfer->ready());
  }
}

TEST_P(OnEachEngine, WhatIsWrittenIsRead) {
  constexpr std::int64_t bytes = 2 << 20;
  ScratchFile file(options(bytes));
  EXPECT_STREQ(file.engine(), GetParam() == Engine::uring ? "io_uring" : "threads");
  EXPECT_EQ(file.bytes(), bytes);
  std::mt19937 random(1);
  AlignedBuffer image(bytes), found(bytes);
  for (unsigned round = 0; round < 6; ++round) {
    fill(image, round);
    Transfers writes, reads;
    for (const auto& [offset, length] : cut(bytes, random)) {
      writes.push_back(file.write(offset, image.data() + offset, length));
    }
    wait_for(writes);
    std::memset(found.data(), 0, bytes);
    for (const auto& [offset, length] : cut(bytes, random)) {
      reads.push_back(file.read(offset, found.data() + offset, length));
    }
    wait_for(reads);
    ASSERT_EQ(std::memcmp(image.data(), found.data(), bytes), 0) << "round " << round;
  }
}

TEST_P(OnEachEngine, OneTransferIsWholeWhateverItsBlocks) {
  for (const std::int64_t bytes : {std::int64_t{0}, file_alignment, std::int64_t{64 << 10},
                                   (std::int64_t{64 << 10}) + file_alignment, std::int64_t{900} << 10}) {
    ScratchFile file(options(bytes));
    AlignedBuffer image(bytes), found(bytes);
    fill(image, 7);
    file.write(0, image.data(), bytes)->wait();
    file.read(0, found.data(), bytes)->wait();
    EXPECT_EQ(std::memcmp(image.data(), found.data(), bytes), 0) << bytes;
  }
}

TEST_P(OnEachEngine, NothingIsDoneAtOnce) {
  ScratchFile file(options(file_alignment));
  EXPECT_TRUE(file.write(file_alignment, nullptr, 0)->ready());
}

TEST_P(OnEachEngine, GoesOnWhileNobodyWaits) {
  constexpr std::int64_t bytes = 3 << 20;  // many times what is in flight
  ScratchFile file(options(bytes));
  AlignedBuffer image(bytes);
  fill(image, 2);
  const auto transfer = file.write(0, image.data(), bytes);
  EXPECT_TRUE(eventually([&] { return transfer->ready(); }));
}

TEST_P(OnEachEngine, ManyThreadsStartAndWait) {
  constexpr std::int64_t part = 256 << 10;
  ScratchFile file(options(4 * part));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&file, t] {
      AlignedBuffer image(part), found(part);
      fill(image, static_cast<unsigned>(t));
      for (int round = 0; round < 10; ++round) {
        Transfers transfers;
        for (std::int64_t at = 0; at < part; at += file_alignment) {
          transfers.push_back(file.write(t * part + at, image.data() + at, file_alignment));
        }
        std::reverse(transfers.begin(), transfers.end());
        wait_for(transfers);
        file.read(t * part, found.data(), part)->wait();
        EXPECT_EQ(std::memcmp(image.data(), found.data(), part), 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(OnEachEngine, MayBeClosedWithoutAWait) {
  constexpr std::int64_t bytes = 1 << 20;
  AlignedBuffer image(bytes);
  fill(image, 1);
  std::shared_ptr<Transfer> transfer;
  {
    ScratchFile file(options(bytes));
    transfer = file.write(0, image.data(), bytes);
  }
  EXPECT_TRUE(transfer->ready());
  EXPECT_TRUE(nothing_is_left());
}

// The descriptor of the one file that this process has open in the folder.
int descriptor_in(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(folder.string() + "/")) {
      return std::stoi(entry.path().filename());
    }
  }
  return -1;
}

TEST_P(OnEachEngine, TheFileIsItsUsersAloneAndHasNoName) {
  constexpr std::int64_t bytes = 1 << 20;
  const ScratchFile file(options(bytes));
  EXPECT_TRUE(nothing_is_left());
  const int descriptor = descriptor_in(folder_.path());
  struct stat status {};
  ASSERT_EQ(fstat(descriptor, &status), 0);
  EXPECT_EQ(status.st_mode, static_cast<mode_t>(S_IFREG | 0600));
  EXPECT_EQ(status.st_nlink, nlink_t{0});
  EXPECT_EQ(status.st_size, bytes);
  EXPECT_TRUE(!file.reserved() || status.st_blocks * 512 >= bytes);
  EXPECT_EQ((fcntl(descriptor, F_GETFL) & O_DIRECT) != 0, file.direct());
  EXPECT_NE(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
}

TEST_P(OnEachEngine, AKilledRankLeavesNothing) {
  EXPECT_EQ(offload_test::in_child([&]() -> std::string {
              ScratchFile file(options(1 << 20));
              AlignedBuffer image(1 << 20);
              file.write(0, image.data(), image.bytes());
              raise(SIGKILL);
              return "";
            }),
            "ended by signal 9");
  EXPECT_TRUE(nothing_is_left());
}

TEST_P(OnEachEngine, RefusesWhatADiskCannotDo) {
  ScratchFile file(options(4 * file_alignment));
  AlignedBuffer memory(4 * file_alignment);
  const auto refused = [&](std::int64_t offset, std::byte* at, std::int64_t bytes) {
    EXPECT_THAT(error_of([&] { file.read(offset, at, bytes); }),
                HasSubstr("expected multiples of 4096 within the file"));
  };
  refused(512, memory.data(), file_alignment);
  refused(0, memory.data() + 512, file_alignment);
  refused(0, memory.data(), 512);
  refused(-file_alignment, memory.data(), file_alignment);
  refused(4 * file_alignment, memory.data(), file_alignment);
  refused(file_alignment, memory.data(), 4 * file_alignment);
  EXPECT_THAT(error_of([&] { ScratchFile{options(100)}; }), HasSubstr("100 bytes, expected a multiple of 4096"));
}

TEST_P(OnEachEngine, AFileThatWasCutIsNamed) {
  constexpr std::int64_t bytes = 1 << 20;
  AlignedBuffer memory(bytes);
  for (const std::int64_t left : {bytes / 2, std::int64_t{5000}, std::int64_t{0}}) {
    ScratchFile file(options(bytes));
    ASSERT_EQ(ftruncate(descriptor_in(folder_.path()), left), 0);
    const std::string error = error_of([&] { file.read(0, memory.data(), bytes)->wait(); });
    EXPECT_THAT(error, HasSubstr("rank 3: cannot read "));
    EXPECT_THAT(error,
                HasSubstr(fmt::format("of its scratch file in '{}': the file has {} bytes, expected 1048576. Something",
                                      folder_.path().string(), left)));
  }
}

}  // namespace
}  // namespace orthant::scratch_file_test
