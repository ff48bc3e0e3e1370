// How long an operation takes on a device that may run behind the host.
#pragma once

#include <orthant/ops.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace orthant::bench {

// Seconds of one call: the median of several samples, each of as many calls in a row as last `sample_seconds`. The
// device is waited for around a sample, so that what the host spends on enqueueing counts only where it is the slower.
class Timer {
 public:
  Timer(Stream& stream, double sample_seconds, int samples)
      : stream_(stream), sample_seconds_(sample_seconds), samples_(samples) {}

  double operator()(const std::function<void()>& call) const {
    for (int warm = 0; warm < 3; ++warm) {
      call();
    }
    const double once = std::max(seconds_of(call, 1), 1e-9);
    const int calls = static_cast<int>(std::clamp(sample_seconds_ / once, 1.0, 1e5));
    std::vector<double> seconds;
    for (int sample = 0; sample < samples_; ++sample) {
      seconds.push_back(seconds_of(call, calls) / calls);
    }
    std::nth_element(seconds.begin(), seconds.begin() + samples_ / 2, seconds.end());
    return seconds[samples_ / 2];
  }

 private:
  double seconds_of(const std::function<void()>& call, int calls) const {
    stream_.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    stream_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  Stream& stream_;
  double sample_seconds_;
  int samples_;
};

}  // namespace orthant::bench
