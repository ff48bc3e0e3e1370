#include "core/train/readback.h"

namespace orthant {

void Readback::begin(std::span<const Tensor> from, Device& device, Stream& stream) {
  parts_.clear();
  for (const Tensor& t : from) {
    Part& part = parts_.emplace_back();
    part.bytes = t.defined() ? t.bytes() : 0;
    if (part.bytes == 0) {
      continue;
    }
    if (device.asynchronous()) {
      part.pinned = device.host_empty(t.dtype(), t.shape());
      stream.download(part.pinned, t);
    } else {
      part.here.resize(part.bytes);
      stream.download(part.here.data(), t);
    }
  }
  passed_ = device.asynchronous() ? stream.record() : nullptr;
}

void Readback::wait() {
  if (passed_ != nullptr) {
    passed_->wait();
    passed_ = nullptr;
  }
}

}  // namespace orthant
