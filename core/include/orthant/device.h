// Device: memory and streams of one kind of processor. Devices are found at run time; "cpu" is built in.
//
// Ownership: a Device outlives every Tensor, Stream and Event made from it. One Device object per rank.
// Thread safety: allocate, memory and the making of streams are safe from any thread; a Stream belongs to one thread
// at a time (see ops.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <orthant/abi/tensors.h>
#include <orthant/tensor.h>

namespace orthant {

class Stream;

// A point in a stream's order. Made by Stream::record.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool ready() const = 0;  // true once the work recorded before it is done; never blocks
  virtual void wait() = 0;         // blocks the calling thread until then; rethrows a failure of that work
};

// Bytes of tensors by kind, in the order of all_memory_kinds.
class BytesByKind {
 public:
  std::int64_t& operator[](MemoryKind kind) { return bytes_[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](MemoryKind kind) const { return bytes_[static_cast<std::size_t>(kind)]; }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (std::int64_t bytes : bytes_) {
      sum += bytes;
    }
    return sum;
  }
  bool operator==(const BytesByKind&) const = default;

 private:
  std::array<std::int64_t, all_memory_kinds.size()> bytes_{};
};

// In the bytes that were asked for.
struct MemoryUse {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;
  BytesByKind current_kinds, peak_kinds;  // now, and when the peak was reached; each adds up to the number above
};

enum class Access { read, write, read_write };

// Host-visible bytes of a tensor for as long as the object lives: the tensor itself if the host can address it, else a
// staged copy. The copy is filled on construction (unless Access::write) and written back on destruction (unless
// Access::read). For communicators, checkpoints, loaders and tests; never for arithmetic in a plugin.
class HostView {
 public:
  virtual ~HostView() = default;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  HostView(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  std::size_t bytes_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "cpu", "guarded", "late", "late_sides", "cuda"
  // Whether operations may still be running when they return. Whoever then reads a tensor on the host waits first.
  virtual bool asynchronous() const { return false; }
  // False for the device of a plan (`orthant plan`): tensors are counted and hold nothing. No files are written then.
  virtual bool holds_data() const { return true; }

  // Uninitialised memory, aligned to 64 bytes or more, counted as the calling thread's kind (MemoryScope). Errors:
  // Error naming the bytes asked for and in use, also where they would exceed the limit (limit_memory).
  Tensor empty(DType dtype, Shape shape);
  // The same in the host's memory, page-locked where the device copies faster from and to such memory. Only
  // Stream::upload, Stream::download, HostView and the streams of make_host_stream take this tensor. It may be dropped
  // while a copy is on its way.
  Tensor host_empty(DType dtype, Shape shape);

  // The main stream runs on the calling thread's behalf, in program order. A side stream is concurrent with it. Its
  // work is ordered only within itself and by Stream::wait(event).
  virtual std::unique_ptr<Stream> make_main_stream() = 0;
  virtual std::unique_ptr<Stream> make_side_stream() = 0;
  // A side stream that computes on the host's processor, on tensors of host_empty and no others. It waits for events of
  // the device's other streams, and they for its own.
  virtual std::unique_ptr<Stream> make_host_stream() = 0;

  // REQUIRES: work that writes `tensor` has completed or is ordered before on the calling thread's stream.
  virtual std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) = 0;

  // For the log of a run: which kernels compute dense products, experts and attention of this dtype, and why. "" where
  // there is nothing to choose.
  virtual std::string kernels(DType /*compute*/) const { return {}; }

  MemoryUse memory() const;  // of the device; host_memory: of host_empty's tensors
  MemoryUse host_memory() const;
  void reset_peak();  // of both
  // memory() never exceeds `bytes` from now on: empty refuses what would. 0: no limit.
  void limit_memory(std::int64_t bytes);
  void limit_host_memory(std::int64_t bytes);  // likewise host_memory() and host_empty

 protected:
  Device();
  // Counts its tensors with those of `of`, whose memory they share.
  explicit Device(const Device& of);
  Device& operator=(const Device&) = delete;

  friend class Storage;
  friend class MemoryScope;
  // Drops what only finished work still keeps, and may wait for such work: called where a limit would be exceeded.
  virtual void make_room() {}
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data, std::size_t bytes) noexcept = 0;
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* data, std::size_t bytes) noexcept = 0;

  // For a device that stands before another one, `of`, and passes on what it is asked.
  static void make_room_on(Device& of) { of.make_room(); }
  static void* allocate_on(Device& of, std::size_t bytes, Memory memory) {
    return memory == Memory::device ? of.allocate(bytes) : of.allocate_host(bytes);
  }
  static void release_on(Device& of, void* data, std::size_t bytes, Memory memory) noexcept {
    memory == Memory::device ? of.release(data, bytes) : of.release_host(data, bytes);
  }

 private:
  struct Accounts;
  std::shared_ptr<Accounts> accounts_;
};

// What the calling thread allocates on `device` until the scope ends is of this kind; the innermost scope counts.
// Outside of any it is MemoryKind::other. Scopes of one thread end in reverse order.
class MemoryScope {
 public:
  MemoryScope(Device& device, MemoryKind kind);
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  ~MemoryScope();

 private:
  Device& device_;
  MemoryKind before_;
};

// The built-in CPU device. `threads`: OpenMP threads that operations of the calling rank may use.
std::unique_ptr<Device> make_cpu_device(int threads);

// The CPU device with memory that is unreadable (PROT_NONE) except to an operation or a HostView. For tests.
std::unique_ptr<Device> make_guarded_device(int threads);

// As the CPU device, but one kind of its streams runs each operation a moment after it was asked to, as a GPU's streams
// do: the main streams, or the side streams. What another stream or the host touches without waiting is not there yet.
// For tests.
enum class Late { main_streams, side_streams };
std::unique_ptr<Device> make_late_device(Late late, int threads);

// "cpu", "guarded", "late" and "late_sides" are built in; others are looked up as liborthant_device_NAME.so.
// deterministic: run.deterministic; the built-in devices always are. Errors: Error listing every path tried.
std::unique_ptr<Device> make_device(const std::string& name, int threads, bool deterministic = true);

}  // namespace orthant
