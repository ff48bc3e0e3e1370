// Tensor: a contiguous, shaped view of device memory with shared ownership.
//
// Copying a Tensor copies the view, not the bytes. `data()` is a device address. Only operations of a Stream (ops.h)
// and HostView (device.h) may dereference it. Code outside a device never does, plugins included.
//
// Thread safety: that of std::shared_ptr. The streams that use the bytes order them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include <orthant/abi/tensors.h>
#include <orthant/error.h>

namespace orthant {

class Device;

// i8 and the two 8-bit floats are storage types: Stream::cast, quantise and dequantise convert them, copies, fills and
// collectives move them, and no other operation takes them. f8_e4m3 has 3 bits of mantissa, no infinity and 448 as its
// largest number; f8_e5m2 has 2 bits, infinities, and 57344. Source: Open Compute Project, "OCP 8-bit Floating Point
// Specification (OFP8)", revision 1.0 (2023).
enum class DType : std::uint8_t { f32, bf16, i32, i64, u8, f64, i8, f8_e4m3, f8_e5m2 };
inline constexpr std::array all_dtypes = {DType::f32, DType::bf16, DType::i32,     DType::i64,    DType::u8,
                                          DType::f64, DType::i8,   DType::f8_e4m3, DType::f8_e5m2};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::i64:
    case DType::f64: return 8;
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2: return 1;
  }
  return 0;
}

// Whether Group::all_reduce and its like take this type. The others are only moved.
constexpr bool is_summable(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f64 || dtype == DType::i32 ||
         dtype == DType::i64;
}

const char* name_of(DType dtype);  // "f32", "bf16", ...

// Up to four sizes, outermost first. Row-major.
class Shape {
 public:
  static constexpr int max_rank = 4;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes) {
    require(sizes.size() <= max_rank, "a tensor has at most {} dimensions, got {}", max_rank, sizes.size());
    for (std::int64_t s : sizes) {
      push_back(s);
    }
  }
  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return sizes_[i]; }
  void set(int i, std::int64_t size) { sizes_[i] = size; }
  void push_back(std::int64_t size) {
    require(rank_ < max_rank && size >= 0, "bad tensor dimension {} at index {}", size, rank_);
    sizes_[rank_++] = size;
  }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) {
      n *= sizes_[i];
    }
    return n;
  }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) {
      return false;
    }
    for (int i = 0; i < rank_; ++i) {
      if ((*this)[i] != other[i]) {
        return false;
      }
    }
    return true;
  }
  std::string to_string() const;  // "[4, 256]"

 private:
  std::array<std::int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

// Whose memory: the device's, or the host's, for copies between the two (Device::host_empty).
enum class Memory : std::uint8_t { device, host };

// What memory is for: a device counts its tensors by kind (Device::memory), and `orthant plan` and metrics.jsonl show
// it.
enum class MemoryKind : std::uint8_t {
  weights,      // as layers read them, also those that a keeper has gathered for a while
  gradients,    // whole or this rank's part
  states,       // of the optimizer, master weights that are not the weights themselves, states of keepers
  activations,  // kept by a forward pass for its backward pass
  exchange,     // rows on their way to experts and back
  work,         // within a pass or an update
  offload,      // what a plugin needs to have other kinds elsewhere
  other         // batches, sums, and what nobody names
};
inline constexpr std::array all_memory_kinds = {MemoryKind::weights,     MemoryKind::gradients, MemoryKind::states,
                                                MemoryKind::activations, MemoryKind::exchange,  MemoryKind::work,
                                                MemoryKind::offload,     MemoryKind::other};
const char* name_of(MemoryKind kind);  // "weights", ...

// One allocation of a device; freed (stream-ordered where the device is asynchronous) with its last Tensor.
class Storage {
 public:
  Storage(Device& device, void* data, std::size_t bytes, Memory memory, MemoryKind kind)
      : device_(&device), data_(data), bytes_(bytes), memory_(memory), kind_(kind) {}
  // The memory of `of` at another address, which its device knows of: neither counted nor freed. `of` outlives it.
  Storage(const Storage& of, void* data)
      : device_(of.device_), data_(data), bytes_(of.bytes_), memory_(of.memory_), kind_(of.kind_), owns_(false) {}
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  Device& device() const { return *device_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Memory memory() const { return memory_; }
  MemoryKind kind() const { return kind_; }
  // From now on it is counted as another kind. Not from two threads at once.
  void set_kind(MemoryKind kind);

 private:
  Device* device_;
  void* data_;
  std::size_t bytes_;
  Memory memory_;
  MemoryKind kind_;
  bool owns_ = true;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: no memory; `defined()` is false
  // Written out of line: these stand on nearly every line of a step, and inlined they were half of its code.
  Tensor(const Tensor&);
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(const Tensor&);
  Tensor& operator=(Tensor&&) noexcept;
  ~Tensor();
  Tensor(std::shared_ptr<Storage> storage, std::size_t byte_offset, DType dtype, Shape shape);

  bool defined() const { return storage_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t dim(int i) const { return shape_[i < 0 ? shape_.rank() + i : i]; }
  int rank() const { return shape_.rank(); }
  std::int64_t elements() const { return shape_.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype_); }
  Device& device() const { return storage_->device(); }
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  bool on_host() const { return defined() && storage_->memory() == Memory::host; }

  // The same elements under another shape. REQUIRES: equal element counts.
  Tensor view(Shape shape) const;
  // Rows [begin, begin + count) of the outermost dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const;
  // `shape.elements()` elements of this view, flattened, from element `offset` on.
  Tensor slice(std::int64_t offset, Shape shape) const;

  // Device address of the first element. See the note at the top of this file.
  void* data() const { return defined() ? static_cast<std::byte*>(storage_->data()) + byte_offset_ : nullptr; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }

 private:
  std::shared_ptr<Storage> storage_;
  std::size_t byte_offset_ = 0;
  DType dtype_ = DType::f32;
  Shape shape_;
};

}  // namespace orthant

// So that a check may name a shape at no cost while it holds: require(ok, "got {}", tensor.shape()).
template <>
struct fmt::formatter<orthant::Shape> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const orthant::Shape& shape, Context& context) const {
    return fmt::formatter<std::string>::format(shape.to_string(), context);
  }
};
