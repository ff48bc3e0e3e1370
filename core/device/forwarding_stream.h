// A Stream that hands every operation, as a closure, to one virtual function: the base of streams that change
// when (side_stream.h) or around what (guarded.h) an operation of an inner stream runs.
#pragma once

#include <orthant/ops.h>

namespace orthant {

class ForwardingStream : public Stream {
 public:
#include "core/device/operation_overrides.inc"

 protected:
  using Operation = std::function<void(Stream& inner)>;

  // Runs or queues `operation`, which touches only `tensors` (some may be undefined) and holds all it needs.
  // `name` is the operation's, as in ops.h.
  virtual void forward(const char* name, std::initializer_list<Tensor> tensors, Operation operation) = 0;

  // What `operation` is given for a tensor of its caller.
  virtual Tensor seen(const Tensor& t) const {
    return t;
  }

 private:
  template <class T>
  static T seen(const T& other) {
    return other;
  }
};

}  // namespace orthant
