// Working memory that grows and is reused: a kernel's packed panels and fp32 copies cost page faults only once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace orthant {

// Thread safety: none; one per stream or per call.
class ScratchBuffer {
 public:
  // At least `bytes` uninitialised bytes, aligned to 64; earlier contents and addresses are lost when it grows.
  void* get(std::size_t bytes) {
    if (bytes > bytes_ || data_ == nullptr) {
      const std::size_t rounded = (bytes + 64) / 64 * 64;
      data_.reset();
      bytes_ = 0;
      data_.reset(std::aligned_alloc(64, rounded));
      if (data_ == nullptr) {
        throw std::bad_alloc();
      }
      bytes_ = rounded;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace orthant
