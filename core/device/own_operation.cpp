#include "core/device/own_operation.h"

#include <string_view>

namespace orthant {

void check_own_operation(const OwnOperation& operation) {
  require(!operation.name.empty(), "apply: an operation needs a name, PLUGIN/OPERATION");
  require(operation.host != nullptr, "{}: it has no function on the host", operation.name);
  require(operation.inputs.size() + operation.outputs.size() <= most_own_tensors,
          "{}: {} tensors are more than the {} of an operation", operation.name,
          operation.inputs.size() + operation.outputs.size(), most_own_tensors);
  for (std::size_t i = 0; i < operation.inputs.size(); ++i) {
    require(operation.inputs[i].defined(), "{}: input {} is undefined", operation.name, i);
  }
  for (std::size_t i = 0; i < operation.outputs.size(); ++i) {
    require(operation.outputs[i].defined(), "{}: output {} is undefined", operation.name, i);
  }
}

void run_on_host(const OwnOperation& operation, const std::function<std::byte*(const Tensor&)>& data) {
  const auto all = [&](const std::vector<Tensor>& tensors) {
    std::vector<HostArguments::Argument> arguments;
    for (const Tensor& t : tensors) {
      arguments.push_back({data(t), t.dtype(), t.shape()});
    }
    return arguments;
  };
  try {
    operation.host(HostArguments(operation.name, all(operation.inputs), all(operation.outputs)));
  } catch (const std::exception& failure) {
    if (std::string_view(failure.what()).starts_with(operation.name + ":")) {
      throw;  // of the arguments
    }
    fail("{}: {}", operation.name, failure.what());
  }
}

void run_in_order(Stream& stream, const std::function<void()>& work) {
  std::exception_ptr failure;
  stream.host([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  stream.synchronize();
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

// One view of each place: an operation may be given the same tensor twice, in place. Where one of the two is written,
// both are.
HostViews::HostViews(Device& device, std::span<const GivenTensor> tensors) {
  std::map<const void*, GivenTensor> places;
  for (const GivenTensor& one : tensors) {
    if (one.tensor.defined()) {
      GivenTensor& place = places.try_emplace(one.tensor.data(), one).first->second;
      place.is_written = place.is_written || one.is_written;
      if (place.tensor.bytes() < one.tensor.bytes()) {
        place.tensor = one.tensor;
      }
    }
  }
  for (const auto& [place, one] : places) {
    views_[place] = device.host_view(one.tensor, one.is_written ? Access::read_write : Access::read);
  }
}

}  // namespace orthant
