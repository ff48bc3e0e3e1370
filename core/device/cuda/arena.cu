#include "core/device/cuda/arena.h"

#include <algorithm>

#include "core/device/cuda/launch.h"

namespace orthant::cuda {

std::byte* GpuMemory::segment(std::size_t bytes) {
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation && !capturing_) {
    static_cast<void>(cudaGetLastError());
    make_room();
    status = cudaMalloc(&memory, bytes);
  }
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(status, fmt::format("allocating {} bytes", bytes));
  return static_cast<std::byte*>(memory);
}

void GpuMemory::make_room() {
  if (drop_) {
    drop_();
  }
  const std::lock_guard lock(mutex_);
  for (Arena* arena : arenas_) {
    arena->trim();
  }
}

void GpuMemory::out_of_memory(std::size_t asked, cudaError_t status) const {
  static_cast<void>(cudaGetLastError());
  if (status != cudaErrorMemoryAllocation) {
    check(status, fmt::format("allocating {} bytes", asked));
  }
  std::size_t free = 0, total = 0, kept = 0;
  static_cast<void>(cudaMemGetInfo(&free, &total));
  const MemoryUse use = use_ ? use_() : MemoryUse();
  const std::lock_guard lock(mutex_);
  for (const Arena* arena : arenas_) {
    kept += arena->kept();
  }
  fail(
      "out of memory on GPU {}: {} bytes asked for; of its {} bytes {} are free, {} are in use by this rank's tensors "
      "({} at most so far), whose cache holds {}; the rest is other ranks' or programs'. Use a smaller micro-batch, "
      "memory.recompute, or more ranks",
      ordinal_, asked, total, free, use.current_bytes, use.peak_bytes, kept);
}

Arena::Arena(std::shared_ptr<GpuMemory> gpu, cudaStream_t stream) : gpu_(std::move(gpu)), stream_(stream) {
  const std::lock_guard lock(gpu_->mutex_);
  gpu_->arenas_.push_back(this);
}

Arena::~Arena() {
  {
    const std::lock_guard lock(gpu_->mutex_);
    std::erase(gpu_->arenas_, this);
  }
  trim();
}

void* Arena::take(std::size_t bytes) {
  if (!gpu_->cached()) {
    void* memory = nullptr;
    cudaError_t status = cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), stream_);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      gpu_->make_room();
      status = cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), stream_);
    }
    if (status != cudaSuccess) {
      gpu_->out_of_memory(bytes, status);
    }
    return memory;
  }
  std::unique_lock lock(mutex_);
  for (;;) {
    if (std::byte* const block = cache_.take(bytes)) {
      return block;
    }
    lock.unlock();  // making room may trim this arena
    std::size_t size = BlockCache::segment_for(bytes, BlockCache::Segment::usual);
    std::byte* segment = gpu_->segment(size);
    if (segment == nullptr) {
      size = BlockCache::segment_for(bytes, BlockCache::Segment::least);
      segment = gpu_->segment(size);
    }
    if (segment == nullptr) {
      gpu_->out_of_memory(bytes, cudaErrorMemoryAllocation);
    }
    lock.lock();
    cache_.add(segment, size, bytes);
  }
}

void Arena::give(void* block) noexcept {
  if (!gpu_->cached()) {
    static_cast<void>(cudaFreeAsync(block, stream_));
    return;
  }
  const std::lock_guard lock(mutex_);
  cache_.give(static_cast<std::byte*>(block));
}

void Arena::trim() noexcept {
  const std::lock_guard lock(mutex_);
  static_cast<void>(cudaStreamSynchronize(stream_));
  for (std::byte* segment : cache_.remove_unused()) {
    static_cast<void>(cudaFree(segment));
  }
}

std::size_t Arena::kept() const {
  const std::lock_guard lock(mutex_);
  return cache_.reserved_bytes();
}

}  // namespace orthant::cuda
