#include <orthant/fallback_stream.h>

#include "core/base/check.h"
#include "core/device/own_operation.h"

namespace orthant {
namespace {

void run_in_order(Stream& stream, const char* name, std::vector<GivenTensor> tensors,
                  std::function<void(const HostViews&)> work) {
  for (const GivenTensor& one : tensors) {
    require(!one.tensor.on_host(), "{} was given a tensor of the host's memory", name);
  }
  stream.host([&device = stream.device(), tensors = std::move(tensors), work = std::move(work)] {
    work(HostViews(device, tensors));
  });
}

}  // namespace

FallbackStream::FallbackStream(Device& device, int threads)
    : device_(device), processor_(make_cpu_device(threads)), host_(processor_->make_main_stream()) {}

FallbackStream::~FallbackStream() = default;

#define ORTHANT_OPERATION(name, parameters, arguments)                                                                \
  void FallbackStream::name parameters {                                                                              \
    const auto run = [this](const auto&... given) {                                                                   \
      run_in_order(*this, #name, {given_tensor(given)...},                                                            \
                   [&host = *host_, ... taken = kept(given)](const HostViews& on) { host.name(on.seen(taken)...); }); \
    };                                                                                                                \
    run arguments;                                                                                                    \
  }
#include <orthant/operations.inc>

}  // namespace orthant
