// The CUDA device: the GPU of this rank, its memory and its streams.
//
// Which GPU: the rank's number on its machine (ORTHANT_LOCAL_RANK, which `orthant launch` sets; else LOCAL_RANK,
// OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID; else 0), modulo the number of GPUs that CUDA_VISIBLE_DEVICES leaves. Ranks
// that share one GPU each have a CudaDevice of their own. Memory: tensors live in the order of the main stream
// (arena.h); what side streams must do for that: side_stream.h. Thread safety: as device.h.
#pragma once

#include <cuda_runtime.h>

#include <orthant/device.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/device/cuda/arena.h"
#include "core/device/cuda/kept_tensors.h"
#include "core/device/cuda/kernel_limits.h"
#include "core/device/cuda/staging.h"

namespace orthant::cuda {

class CudaDevice final : public Device {
 public:
  // name: "cuda"; "simt" where the kernels run on the CPU (tests/simt). Errors: Error where there is no usable GPU.
  // experts: which kernels they use (expert_kernels); empty: the device's choice. host_threads: of one operation of a
  // host stream. deterministic: run.deterministic.
  CudaDevice(std::string name, std::string experts, int host_threads, bool deterministic);
  // The same GPU for the operations of a side stream: their working memory is in the order of `stream`. `of` and
  // `stream` outlive it.
  CudaDevice(CudaDevice& of, cudaStream_t stream);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<Stream> make_host_stream() override;
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;
  std::string kernels(DType compute) const override;  // experts/cuda/kernels.cu

  int ordinal() const { return ordinal_; }
  int multiprocessors() const { return multiprocessors_; }
  // 80 for sm_80, 90 for Hopper.
  int architecture() const { return architecture_; }
  // Bytes that a block of a kernel may have, static and dynamic ones together: at least least_shared_memory.
  std::size_t shared_memory() const { return shared_memory_; }
  // For Grid: so many bytes of dynamic shared memory.
  SharedBytes shared(std::size_t bytes) const { return {bytes, kernel_limits_.get()}; }
  // A word that the device only carries: experts/cuda knows what it means.
  const std::string& expert_kernels() const { return expert_kernels_; }
  // False: a library's kernels may add in any order, where it has no others.
  bool deterministic() const { return deterministic_; }
  // The stream in whose order memory is allocated and freed.
  cudaStream_t main() const { return main_; }
  PinnedCache& pinned() { return *pinned_; }
  const std::shared_ptr<EventPool>& events() { return events_; }

  // --- for side streams
  // Allocations so far. The main stream's work on earlier tensors that had a tensor's memory is before everything that
  // the main stream is given once allocation_of(tensor) is counted here.
  std::uint64_t allocations() const { return allocations_; }
  std::uint64_t allocation_of(const Tensor& tensor) const;
  // Whose tensors are dropped when they are done with.
  void add(const std::shared_ptr<KeptTensors>& kept);
  // The calling thread, and host_view on it, works for `stream` from now on.
  void adopt_thread(cudaStream_t stream);
  void release_thread(std::thread::id thread);

  // --- for together()
  bool captures() const { return gpu_->cached(); }
  bool capturing() const { return capturing_; }
  void set_capturing(bool now);
  // Errors: Error, saying why `what` cannot be recorded.
  void require_not_capturing(const char* what, const char* why = waits) const;
  static constexpr const char* waits = "it waits for the device, whose work is being recorded";
  static constexpr const char* not_listed = "it cannot be recorded, only this device's own operations can";

 protected:
  void make_room() override;
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  void* allocate_host(std::size_t bytes) override;
  void release_host(void* data, std::size_t bytes) noexcept override;

 private:
  void collect(bool wait);

  const std::string name_, expert_kernels_;
  const bool deterministic_;
  int ordinal_ = 0, multiprocessors_ = 1, architecture_ = 0;
  std::size_t shared_memory_ = 0;
  std::shared_ptr<KernelLimits> kernel_limits_;
  const bool owns_stream_;
  cudaStream_t main_ = nullptr;
  std::shared_ptr<GpuMemory> gpu_;
  std::shared_ptr<PinnedCache> pinned_;
  std::shared_ptr<EventPool> events_;
  std::shared_ptr<HostTensors> host_tensors_;
  std::unique_ptr<Device> host_processor_;  // of make_host_stream; null for the device of a side stream
  std::unique_ptr<Arena> arena_;
  std::atomic<std::uint64_t> allocations_ = 0;
  std::atomic<bool> capturing_ = false;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::uint64_t> allocation_;  // of what is in use
  std::vector<std::weak_ptr<KeptTensors>> kept_;
  std::map<std::thread::id, cudaStream_t> threads_;
};

}  // namespace orthant::cuda
