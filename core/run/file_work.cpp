#include "core/run/file_work.h"

#include <orthant/wait_time.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace orthant {
namespace {

// Well below any timeout that is of use.
constexpr std::chrono::milliseconds between_beats{200};

}  // namespace

FileWork::FileWork(Communicator& communicator, double limit_seconds)
    : thread_([&communicator, limit_seconds](const std::stop_token& stop) {
        WaitTime time;
        time.look();  // it begins now
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        while (!stop.stop_requested() && time.look() < limit_seconds) {
          communicator.beat();
          ended.wait_for(lock, stop, between_beats, [] { return false; });
        }
      }) {}

}  // namespace orthant
