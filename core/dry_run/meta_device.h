// The meta device: tensors have addresses and are counted to the byte as on the CPU device, but operations do no
// arithmetic. The model and the trainer run on it unchanged, and a step of any size takes milliseconds and no memory
// (`orthant plan`, core/dry_run/planning.h). make_device does not know it: a training run on it would learn nothing.
//
// What the host reads in a step must still make sense: counts, and sums in f64. Tensors of those types (holds_data)
// really hold data, zero at first: fill, copy, copy_rows, upload and download work on them. dispatch_plan writes the
// counts of perfectly balanced routing. Every other operation leaves its outputs as they are.
#pragma once

#include <cstddef>
#include <memory>

#include "core/base/memory_count.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/forwarding_stream.h"

namespace orthant {

// Whether data written to `tensor` on a meta device can be read again: it holds integers or f64 in an allocation of at
// most 256 MiB, or it takes up to 4 KiB. Weights and activations are never read, and to fill them took most of a plan's
// time.
bool holds_data(const Tensor& tensor);

class MetaDevice final : public Device {
 public:
  std::string_view name() const override { return "meta"; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override { return make_main_stream(); }
  // Of a tensor that holds no data: zeros, until the host writes there.
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;
  MemoryUse memory() const override { return count_.use(); }
  MemoryUse host_memory() const override { return host_count_.use(); }
  void reset_peak() override {
    count_.reset_peak();
    host_count_.reset_peak();
  }

 protected:
  void* allocate(std::size_t bytes) override { return allocate(bytes, count_); }
  void release(void* data, std::size_t bytes) noexcept override { release(data, bytes, count_); }
  void* allocate_host(std::size_t bytes) override { return allocate(bytes, host_count_); }
  void release_host(void* data, std::size_t bytes) noexcept override { release(data, bytes, host_count_); }

 private:
  void* allocate(std::size_t bytes, MemoryCount& count);
  void release(void* data, std::size_t bytes, MemoryCount& count) noexcept;

  MemoryCount count_, host_count_;
};

class MetaStream final : public ForwardingStream {
 public:
  explicit MetaStream(MetaDevice& device) : device_(device), small_(device, 1) {}

  Device& device() const override { return device_; }
  std::shared_ptr<Event> record() override { return small_.record(); }
  void wait(const std::shared_ptr<Event>& event) override { small_.wait(event); }
  void host(std::function<void()> work) override { work(); }
  void synchronize() override {}

  void copy(const Tensor& to, const Tensor& from) override;
  void fill(const Tensor& t, double value) override;
  void copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) override;
  void upload(const Tensor& to, const void* host) override;
  // Errors: Error where `from` holds no data.
  void download(void* host, const Tensor& from) override;
  void upload(const Tensor& to, const Tensor& from_host) override;
  void download(const Tensor& to_host, const Tensor& from) override;
  // count, dropped, offset: choices spread evenly over the experts, as many as a group's capacity lets in. REQUIRES: no
  // padding. The second choices that gshard leaves to chance are all made.
  void dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                     const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                     const GateConfig& config) override;
  // The next dispatch_plan of `expert` has the share of choices that got seats in the last one.
  void keep_seated(const Tensor& expert, const Tensor& row) override;

 protected:
  void forward(const char*, std::initializer_list<Tensor>, Operation) override {}

 private:
  struct Seated {
    const void* expert = nullptr;
    std::int64_t kept = 1, choices = 1;
  };

  MetaDevice& device_;
  CpuStream small_;
  Seated last_;    // of the last dispatch_plan
  Seated seated_;  // of the last keep_seated
};

}  // namespace orthant
