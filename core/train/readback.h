// Readback: numbers that the device has computed, on their way to the host.
#pragma once

#include <orthant/device.h>
#include <orthant/ops.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace orthant {

// Thread safety: none.
class Readback {
 public:
  // Enqueues copies of these tensors' values, as they are at this place of the stream; undefined ones have none.
  // Returns at once where the device is asynchronous: the copies go to page-locked memory, behind which an event is.
  void begin(std::span<const Tensor> from, Device& device, Stream& stream);
  // Whether wait() would return at once.
  bool ready() const { return passed_ == nullptr || passed_->ready(); }
  // The host waits for those copies, and for nothing behind them.
  void wait();
  // Those of tensor i. REQUIRES: wait() has returned; T is the tensor's type.
  template <class T>
  std::vector<T> values(std::size_t i) const {
    const Part& part = parts_.at(i);
    std::vector<T> out(static_cast<std::size_t>(part.bytes) / sizeof(T));
    if (part.bytes > 0) {
      std::memcpy(out.data(), part.pinned.defined() ? part.pinned.data() : part.here.data(), part.bytes);
    }
    return out;
  }

 private:
  struct Part {
    std::size_t bytes = 0;
    Tensor pinned;                // where the device is asynchronous
    std::vector<std::byte> here;  // elsewhere
  };
  std::vector<Part> parts_;
  std::shared_ptr<Event> passed_;
};

}  // namespace orthant
