// The meta device: tensors have addresses and are counted to the byte as on the CPU device, but operations do no
// arithmetic. The model and the trainer run on it unchanged, and a step of any size takes milliseconds and no memory
// (`orthant plan`, core/dry_run/planning.h). make_device does not know it: a training run on it would learn nothing.
//
// What the host reads in a step must still make sense: counts, and sums in f64. Tensors of those types (holds_data)
// really hold data, zero at first: fill, copy, copy_rows, upload and download work on them. dispatch_plan writes the
// counts of an assumed routing (planned_load.h). Every other operation leaves its outputs as they are.
//
// A side stream works when it gets to it, and holds its tensors until then: how much is held at once is a matter of
// time. A meta device says either extreme (Sides): that work is done at once, or as late as the other streams' waiting
// lets it be. The second is an upper bound, as memory is allocated in the program's order. What mostly happens is
// between them: a sum waits for all its ranks, and lasts until somebody needs it; other work is done at once.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/device/cpu/cpu_stream.h"
#include "core/device/forwarding_stream.h"
#include "core/dry_run/late_work.h"
#include "core/dry_run/planned_load.h"

namespace orthant {

// Whether data written to `tensor` on a meta device can be read again: it holds integers or f64 in an allocation of at
// most 256 MiB, or it takes up to 4 KiB. Weights and activations are never read, and to fill them took most of a plan's
// time.
bool holds_data(const Tensor& tensor);

enum class Sides { at_once, sums_late, as_late_as_may_be };

class MetaDevice final : public Device {
 public:
  // asynchronous: of the device that it stands for.
  explicit MetaDevice(Sides sides = Sides::at_once, bool asynchronous = false)
      : sides_(sides), asynchronous_(asynchronous) {}
  ~MetaDevice() override;

  std::string_view name() const override { return "meta"; }
  bool asynchronous() const override { return asynchronous_; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<Stream> make_host_stream() override { return make_side_stream(); }
  bool holds_data() const override { return false; }
  // Of layers with so many experts: a teacher may have others than the model. Balanced where none is set.
  void set_routing(std::int64_t experts, const PlannedRouting& routing) { routing_[experts] = routing; }
  const PlannedRouting& routing(std::int64_t experts) { return routing_[experts]; }
  // Of a tensor that holds no data: zeros, until the host writes there.
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;

 protected:
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* data, std::size_t bytes) noexcept override { release(data, bytes); }

 private:
  void unmap_unused() noexcept;

  const Sides sides_;
  const bool asynchronous_;
  // By their size. A step asks for the same sizes again and again, and to map and unmap each took two fifths of a
  // plan's time.
  struct Mappings {
    std::size_t made = 0;
    std::vector<void*> unused;  // has room for all that were made: release must not fail
  };
  std::unordered_map<std::size_t, Mappings> mappings_;
  std::map<std::int64_t, PlannedRouting> routing_;
  std::vector<std::unique_ptr<LateWork>> late_;  // of its side streams
};

class MetaStream final : public ForwardingStream {
 public:
  // late: null for a stream whose work is done at once. only_sums: but for sums, and what is given while one waits.
  MetaStream(MetaDevice& device, LateWork* late, bool only_sums = false)
      : device_(device), small_(device, 1), late_(late), only_sums_(only_sums) {}
  ~MetaStream() override { synchronize(); }

  Device& device() const override { return device_; }
  std::shared_ptr<Event> record() override;
  void wait(const std::shared_ptr<Event>& event) override;
  void host(std::function<void()> work) override { work(); }
  void synchronize() override;
  void uses(std::initializer_list<Tensor> tensors) override { hold(tensors); }
  void sums(std::initializer_list<Tensor> tensors);  // likewise, of a collective that sums

  // Data is moved, and else not computed.
  void copy(const Tensor& to, const Tensor& from) override;
  void copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) override;
  void fill(const Tensor& t, double value) override;
  void upload(const Tensor& to, const Tensor& from_host) override;
  void download(const Tensor& to_host, const Tensor& from) override;
  void upload(const Tensor& to, const void* host) override;
  // Errors: Error where `from` holds no data.
  void download(void* host, const Tensor& from) override;
  // count, dropped, offset: those of the device's routing. REQUIRES: no padding. The second choices that gshard leaves
  // to chance are all made.
  void dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                     const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                     const GateConfig& config) override;
  // The next dispatch_plan of `expert` is about choices that have seats by the last one.
  void keep_seated(const Tensor& expert, const Tensor& row) override;

 protected:
  void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) override;

 private:
  void hold(std::initializer_list<Tensor> tensors);
  bool moves(std::initializer_list<Tensor> tensors);  // holds them too

  MetaDevice& device_;
  CpuStream small_;
  LateWork* late_;
  const bool only_sums_;
  PlannedLoad last_;                     // of the last dispatch_plan
  const void* seated_expert_ = nullptr;  // of the last keep_seated
};

}  // namespace orthant
