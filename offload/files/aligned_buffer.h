// Memory of the host that a file opened with O_DIRECT can be read into and written from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace orthant::offload {

// What a disk asks of a buffer's address, of an offset in a file and of a length.
inline constexpr std::int64_t file_alignment = 4096;

constexpr std::int64_t aligned_up(std::int64_t bytes) {
  return (bytes + file_alignment - 1) / file_alignment * file_alignment;
}
inline bool is_aligned(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(file_alignment) == 0;
}

// Owns aligned_up(bytes) bytes, not set to anything. Movable. Errors: std::bad_alloc. Thread safety: as std::vector.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(std::int64_t bytes)
      : bytes_(aligned_up(bytes)),
        data_(static_cast<std::byte*>(std::aligned_alloc(file_alignment, static_cast<std::size_t>(bytes_)))) {
    if (bytes_ > 0 && data_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::int64_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace orthant::offload
