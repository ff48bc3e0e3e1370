// A rank beats while it works on files, and for no longer than it may.
#include "core/run/file_work.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace orthant::file_work_test {
namespace {

class Beats final : public Communicator {
 public:
  std::string name() const override { return "beats"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Group> split(const std::string&, const std::vector<int>&) override { return nullptr; }
  void abort(const std::string&) noexcept override {}
  void beat() noexcept override {
    const std::lock_guard lock(mutex_);
    ++beats_;
    more_.notify_all();
  }
  // Whether so many came within half a minute.
  bool reach(int beats) {
    std::unique_lock lock(mutex_);
    return more_.wait_for(lock, std::chrono::seconds(30), [&] { return beats_ >= beats; });
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return beats_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable more_;
  int beats_ = 0;
};

TEST(FileWork, BeatsAgainAndAgainUntilItEnds) {
  Beats beats;
  {
    const FileWork work(beats, 1800);
    EXPECT_TRUE(beats.reach(3));
  }
  const int at_the_end = beats.count();
  {
    const FileWork work(beats, 1800);
    EXPECT_TRUE(beats.reach(at_the_end + 1)) << "and again for the next file";
  }
}

TEST(FileWork, BeatsNoMoreWhenItTakesTooLong) {
  Beats beats;
  {
    const FileWork work(beats, 1e-9);  // over before its first beat
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(beats.count(), 0);
}

}  // namespace
}  // namespace orthant::file_work_test
