// The file of tensors on a disk that breaks, stalls and does things by halves; and its end, whatever is under way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "offload/files/scratch_file.h"
#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::scratch_file_failure_test {
namespace {

using namespace orthant::offload;
using orthant::launch_test::eventually;
using orthant::launch_test::TemporaryFolder;
using orthant::test::error_of;
using ::testing::HasSubstr;

constexpr std::int64_t block = 16 << 10;

class ScratchFileFailure : public testing::Test {
 protected:
  ScratchFileOptions options(std::int64_t bytes) const {
    return {.directory = folder_.path(), .bytes = bytes, .rank = 3, .block_bytes = block, .depth = 4};
  }
  TemporaryFolder folder_;
};

// Threads between which and the file a test stands: `change` may shorten an operation and replace what it gave.
class BentEngine final : public IoEngine {
 public:
  struct Change {
    std::int64_t bytes = -1;  // of the operation; -1: as asked for
    std::int64_t result = 0;  // told instead of its own, where it is not 0; negative: instead of the operation
  };
  explicit BentEngine(std::function<Change(const IoOperation&)> change) : change_(std::move(change)) {}

  void start(IoOperation& operation) override {
    const Change change = change_(operation);
    auto* const bent = new IoOperation(operation);
    bent->bytes = change.result < 0 ? 0 : change.bytes < 0 ? operation.bytes : change.bytes;
    bent->done = [&operation, bent, result = change.result](std::int64_t done) {
      const std::unique_ptr<IoOperation> owned(bent);
      operation.done(result != 0 ? result : done);
    };
    threads_->start(*bent);
  }
  const char* name() const override { return "bent"; }

 private:
  std::function<Change(const IoOperation&)> change_;
  std::unique_ptr<IoEngine> threads_ = make_thread_engine(3);
};

TEST_F(ScratchFileFailure, ShortAndInterruptedOperationsAreContinued) {
  std::atomic<int> calls = 0;
  std::atomic<bool> aligned = true;
  ScratchFile file(options(20 * block), std::make_unique<BentEngine>([&](const IoOperation& asked) {
                     if (asked.offset % file_alignment != 0 || asked.bytes % file_alignment != 0) {
                       aligned = false;
                     }
                     switch (++calls % 5) {
                       case 0: return BentEngine::Change{.bytes = std::min(asked.bytes, file_alignment)};
                       case 1: return BentEngine::Change{.result = -EINTR};
                       case 2: return BentEngine::Change{.result = -EAGAIN};
                       case 3: return BentEngine::Change{.result = std::min<std::int64_t>(asked.bytes, 5000)};
                       default: return BentEngine::Change{};
                     }
                   }));
  AlignedBuffer image(file.bytes()), found(file.bytes());
  for (std::int64_t i = 0; i < image.bytes(); ++i) {
    image.data()[i] = static_cast<std::byte>(i * 7 >> 3);
  }
  file.write(0, image.data(), image.bytes())->wait();
  file.read(0, found.data(), found.bytes())->wait();
  EXPECT_EQ(std::memcmp(image.data(), found.data(), static_cast<std::size_t>(image.bytes())), 0);
  EXPECT_TRUE(aligned || !file.direct());
}

TEST_F(ScratchFileFailure, AnEndlessTryAgainIsAnError) {
  ScratchFile file(options(block), std::make_unique<BentEngine>(
                                       [](const IoOperation&) { return BentEngine::Change{.result = -EAGAIN}; }));
  AlignedBuffer memory(block);
  EXPECT_THAT(error_of([&] { file.read(0, memory.data(), block)->wait(); }), HasSubstr("temporarily unavailable"));
}

TEST_F(ScratchFileFailure, ABrokenDiskFailsTheWholeTransferAndAllLaterOnes) {
  ScratchFile file(options(30 * block), std::make_unique<BentEngine>([](const IoOperation& asked) {
                     return BentEngine::Change{.result = asked.offset == 7 * block ? -EIO : 0};
                   }));
  AlignedBuffer memory(file.bytes());
  std::memset(memory.data(), 1, static_cast<std::size_t>(memory.bytes()));
  const auto before = file.write(0, memory.data(), 2 * block);
  before->wait();
  const auto broken = file.write(4 * block, memory.data(), 20 * block);
  const std::string error = error_of([&] { broken->wait(); });
  EXPECT_TRUE(broken->ready());
  EXPECT_EQ(error,
            fmt::format("rank 3: cannot write 16384 bytes at offset 114688 of its scratch file in '{}': "
                        "Input/output error. The disk or its connection may be failing: the kernel's log (dmesg) "
                        "says more. If it is, set plugins.offload.directory to a directory of another disk.",
                        folder_.path().string()));
  EXPECT_EQ(error_of([&] { broken->wait(); }), error);
  before->wait();  // what had been done stays so
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { file.read(0, memory.data(), block); }), error);
    EXPECT_EQ(error_of([&] { file.write(0, memory.data(), block); }), error);
  }
}

// Operations stay at the disk until the test ends them.
struct Disk {
  // The oldest `count` of them.
  void end(int count, int error = 0) {
    std::vector<IoOperation*> ended;
    {
      const std::lock_guard lock(mutex);
      ended.assign(held.begin(), held.begin() + count);
      held.erase(held.begin(), held.begin() + count);
    }
    for (IoOperation* const operation : ended) {
      operation->done(error != 0 ? -error : operation->bytes);
    }
  }
  std::mutex mutex;
  std::vector<IoOperation*> held;
};
class HeldEngine final : public IoEngine {
 public:
  explicit HeldEngine(Disk& disk) : disk_(disk) {}
  void start(IoOperation& operation) override {
    const std::lock_guard lock(disk_.mutex);
    disk_.held.push_back(&operation);
  }
  const char* name() const override { return "held"; }

 private:
  Disk& disk_;
};

// Three transfers at a depth of four: one at the disk, one half there, one behind it.
struct Three {
  explicit Three(ScratchFile& file, AlignedBuffer& memory)
      : first(file.write(0, memory.data(), 2 * block)),
        second(file.write(2 * block, memory.data(), 4 * block)),
        third(file.read(6 * block, memory.data(), block)) {}
  std::shared_ptr<Transfer> first, second, third;
};

TEST_F(ScratchFileFailure, ATransferKeepsItsMemoryUntilItsLastBlockHasEnded) {
  Disk disk;
  ScratchFile file(options(7 * block), std::make_unique<HeldEngine>(disk));
  AlignedBuffer memory(4 * block);
  const Three transfers(file, memory);
  EXPECT_EQ(disk.held.size(), 4u);
  disk.end(1, EIO);
  EXPECT_FALSE(transfers.first->ready());
  EXPECT_FALSE(transfers.second->ready());
  EXPECT_TRUE(transfers.third->ready());
  EXPECT_EQ(disk.held.size(), 3u);  // nothing is begun after a failure
  disk.end(1);
  EXPECT_TRUE(transfers.first->ready());
  disk.end(2);
  const std::string error = error_of([&] { transfers.first->wait(); });
  EXPECT_THAT(error, HasSubstr("cannot write 16384 bytes at offset 0 "));
  EXPECT_EQ(error_of([&] { transfers.second->wait(); }), error);
  EXPECT_EQ(error_of([&] { transfers.third->wait(); }), error);
}

TEST_F(ScratchFileFailure, ClosingWaitsForTheDiskAndFailsTheRest) {
  Disk disk;
  auto file = std::make_unique<ScratchFile>(options(7 * block), std::make_unique<HeldEngine>(disk));
  AlignedBuffer memory(4 * block);
  const Three transfers(*file, memory);
  std::thread closer([&] { file.reset(); });
  EXPECT_TRUE(eventually([&] { return transfers.third->ready(); }));
  EXPECT_FALSE(transfers.first->ready());
  EXPECT_FALSE(transfers.second->ready());
  disk.end(4);
  closer.join();
  transfers.first->wait();
  for (const auto& transfer : {transfers.second, transfers.third}) {
    EXPECT_THAT(error_of([&] { transfer->wait(); }), HasSubstr("was closed before the transfer was done"));
  }
}

}  // namespace
}  // namespace orthant::scratch_file_failure_test
