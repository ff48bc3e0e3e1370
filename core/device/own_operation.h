// What devices share of operations on the host: of plugins' own (Stream::apply), and of those that fall back to it.
#pragma once

#include <orthant/ops.h>

#include <map>

#include "core/device/given.h"

namespace orthant {

inline constexpr std::size_t most_own_tensors = 12;

// Errors: Error naming the operation where it has no name, no function on the host, too many tensors or an undefined
// one.
void check_own_operation(const OwnOperation& operation);

// Calls `host` on memory that the host can address: `data` gives the place of a tensor's bytes.
void run_on_host(const OwnOperation& operation, const std::function<std::byte*(const Tensor&)>& data);

// Runs `work` as host() of the stream, and waits for it. What it throws is thrown here, and the stream goes on.
void run_in_order(Stream& stream, const std::function<void()>& work);

// The host's bytes of an operation's tensors, while it runs there. What is written is read too: the operation may add
// to it, or leave some of its rows as they are.
class HostViews {
 public:
  HostViews(Device& device, std::span<const GivenTensor> tensors);
  std::byte* data(const Tensor& t) const { return views_.at(t.data())->data(); }
  // The tensor at those bytes.
  Tensor seen(const Tensor& t) const {
    return t.defined() ? Tensor(std::make_shared<Storage>(*t.storage(), data(t)), 0, t.dtype(), t.shape()) : t;
  }
  template <class T>
  const T& seen(const T& other) const {
    return other;
  }

 private:
  std::map<const void*, std::unique_ptr<HostView>> views_;
};

}  // namespace orthant
