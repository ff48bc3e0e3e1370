// What a stream is given while a step is recorded (graphs.h), as a list: it is compared with what was recorded before,
// and recorded itself only where that was another sequence.
//
// Thread safety: as the stream it belongs to.
#pragma once

#include <cuda_runtime.h>

#include <orthant/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace orthant::cuda {

// One of them. A kernel of ours has parameters, which a prepared graph can be given anew. Anything else has a key, of
// all that it depends on, and is another command where one bit of that is another.
struct Command {
  const void* what = nullptr;  // the kernel, or a name of the kind
  dim3 blocks, threads;
  std::size_t shared = 0;
  std::vector<std::byte> bytes;                                           // of the parameters, or the key
  std::vector<std::size_t> begin;                                         // where each parameter begins
  void (*launch)(const Command& command, cudaStream_t stream) = nullptr;  // of a kernel
  std::source_location where;                                             // it is launched, for errors
  std::function<void(cudaStream_t)> enqueue;                              // of anything else

  bool kernel() const { return launch != nullptr; }
  // Whether a graph of the other's sequence may stand for this one, once parameters are set.
  bool same_kind(const Command& other) const;
  // The addresses of the parameters.
  std::vector<void*> parameters() const {
    std::vector<void*> addresses;
    for (const std::size_t at : begin) {
      addresses.push_back(const_cast<std::byte*>(bytes.data()) + at);
    }
    return addresses;
  }
};

class Recorder {
 public:
  // Between the two, what the stream is given is listed.
  void begin() {
    commands_.clear();
    listing_ = true;
  }
  std::vector<Command> end() {
    listing_ = false;
    return std::exchange(commands_, {});
  }
  bool listing() const { return listing_; }
  void add(Command command) { commands_.push_back(std::move(command)); }

 private:
  bool listing_ = false;
  std::vector<Command> commands_;
};

// A stream as kernels and libraries are given it.
class StreamRef {
 public:
  StreamRef(cudaStream_t handle) : handle_(handle) {}
  StreamRef(cudaStream_t handle, Recorder& recorder) : handle_(handle), recorder_(&recorder) {}

  // Null where what is launched now is not listed.
  Recorder* lists() const { return recorder_ != nullptr && recorder_->listing() ? recorder_ : nullptr; }

  // For calls of the runtime and of libraries. Errors: Error where it is listed: such a call would not be.
  operator cudaStream_t() const {
    require(lists() == nullptr, "internal error: together(): the device is given what cannot be recorded");
    return handle_;
  }
  // The same, for what enqueues nothing.
  cudaStream_t handle() const { return handle_; }

  // Gives the stream what is no kernel of ours: calls enqueue(cudaStream_t), now, or while a graph is recorded. It is
  // known by `kind`, a name, and by all that it depends on: `key`, of plain values, and `more`.
  template <class F, class... K>
  void give(const char* kind, F&& enqueue, std::span<const std::byte> more, const K&... key) const {
    static_assert((std::has_unique_object_representations_v<K> && ...), "bytes of a key have no meaning");
    Recorder* const recorder = lists();
    if (recorder == nullptr) {
      enqueue(handle_);
      return;
    }
    Command command;
    command.what = kind;
    command.bytes.resize((more.size() + ... + sizeof key));
    std::byte* at = std::copy(more.begin(), more.end(), command.bytes.data());
    const auto put = [&at](const auto& value) {
      std::memcpy(at, &value, sizeof value);
      at += sizeof value;
    };
    (put(key), ...);
    command.enqueue = std::forward<F>(enqueue);
    recorder->add(std::move(command));
  }

 private:
  cudaStream_t handle_;
  Recorder* recorder_ = nullptr;
};

// The command of a kernel with these parameters.
template <class... P>
Command kernel_command(const void* kernel, const dim3& blocks, int threads, std::size_t shared,
                       void (*launch)(const Command&, cudaStream_t), const P&... parameters) {
  static_assert((std::is_trivially_copyable_v<P> && ...));
  Command command;
  command.what = kernel;
  command.blocks = blocks;
  command.threads = dim3(static_cast<unsigned>(threads));
  command.shared = shared;
  command.launch = launch;
  [[maybe_unused]] const auto put = [&]<class T>(const T& parameter) {
    constexpr std::size_t step = alignof(std::max_align_t);
    const std::size_t at = (command.bytes.size() + step - 1) / step * step;
    command.bytes.resize(at + sizeof(T));
    command.begin.push_back(at);
    std::memcpy(command.bytes.data() + at, &parameter, sizeof(T));
  };
  (put(parameters), ...);
  return command;
}

}  // namespace orthant::cuda
