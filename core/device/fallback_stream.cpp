#include <orthant/fallback_stream.h>

#include "core/base/check.h"
#include "core/device/own_operation.h"

namespace orthant {
namespace {

void require_on_device(const char* name, std::span<const GivenTensor> tensors) {
  for (const GivenTensor& one : tensors) {
    require(!one.tensor.on_host(), "{} was given a tensor of the host's memory", name);
  }
}

}  // namespace

FallbackStream::FallbackStream(Device& device, int threads)
    : device_(device), processor_(make_cpu_device(threads)), host_(processor_->make_main_stream()) {}

FallbackStream::~FallbackStream() = default;

#define ORTHANT_OPERATION(name, parameters, arguments)        \
  void FallbackStream::name parameters {                      \
    const auto run = [this](const auto&... given) {           \
      const GivenTensor tensors[] = {given_tensor(given)...}; \
      require_on_device(#name, tensors);                      \
      run_in_order(*this, [&] {                               \
        const HostViews on(device_, tensors);                 \
        host_->name(on.seen(kept(given))...);                 \
      });                                                     \
    };                                                        \
    run arguments;                                            \
  }
#include <orthant/operations.inc>

}  // namespace orthant
