// A stream that measures how long each operation of an inner, synchronous stream takes. For benchmarks.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/device/forwarding_stream.h"

namespace orthant {

class ProfilingStream final : public ForwardingStream {
 public:
  struct Entry {
    double seconds = 0;
    std::int64_t calls = 0;
  };

  // Each operation of `inner` is waited for, and its time is that of the device.
  explicit ProfilingStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  const std::map<std::string, Entry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

  Device& device() const override { return inner_->device(); }
  std::shared_ptr<Event> record() override { return inner_->record(); }
  void wait(const std::shared_ptr<Event>& event) override { inner_->wait(event); }
  void host(std::function<void()> work) override;
  void synchronize() override { inner_->synchronize(); }

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  void measure(const char* name, const std::function<void()>& work);
  std::unique_ptr<Stream> inner_;
  std::map<std::string, Entry> entries_;
};

}  // namespace orthant
