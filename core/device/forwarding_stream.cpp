#include "core/device/forwarding_stream.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/device/given.h"
#include "core/device/own_operation.h"

namespace orthant {
// Of the arguments, the tensors are what the operation touches.
#define ORTHANT_OPERATION(name, parameters, arguments)                                   \
  void ForwardingStream::name parameters {                                               \
    const auto run = [this](const auto&... given) {                                      \
      forward(#name, {given_tensor(given).tensor...},                                    \
              [... taken = seen(kept(given))](Stream& inner) { inner.name(taken...); }); \
    };                                                                                   \
    run arguments;                                                                       \
  }
#include <orthant/operations.inc>

// The host's bytes are taken now: a caller may change them as soon as upload has returned.
void ForwardingStream::upload(const Tensor& to, const void* host) {
  const auto* bytes = static_cast<const std::byte*>(host);
  std::vector<std::byte> taken(bytes, bytes + (to.defined() ? to.bytes() : 0));
  forward("upload", {to}, [to = seen(to), taken = std::move(taken)](Stream& inner) { inner.upload(to, taken.data()); });
}

void ForwardingStream::download(void* host, const Tensor& from) {
  forward("download", {from}, [host, from = seen(from)](Stream& inner) { inner.download(host, from); });
  synchronize();
}

void ForwardingStream::upload(const Tensor& to, const Tensor& from_host) {
  forward("upload", {to, from_host},
          [to = seen(to), from_host = seen(from_host)](Stream& inner) { inner.upload(to, from_host); });
}

void ForwardingStream::download(const Tensor& to_host, const Tensor& from) {
  forward("download", {to_host, from},
          [to_host = seen(to_host), from = seen(from)](Stream& inner) { inner.download(to_host, from); });
}

void ForwardingStream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  std::array<Tensor, most_own_tensors> t;
  std::copy(operation.outputs.begin(), operation.outputs.end(),
            std::copy(operation.inputs.begin(), operation.inputs.end(), t.begin()));
  OwnOperation here = operation;
  for (std::vector<Tensor>* tensors : {&here.inputs, &here.outputs}) {
    for (Tensor& tensor : *tensors) {
      tensor = seen(tensor);
    }
  }
  forward(operation.name.c_str(), {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11]},
          [here = std::move(here)](Stream& inner) { inner.apply(here); });
}

}  // namespace orthant
