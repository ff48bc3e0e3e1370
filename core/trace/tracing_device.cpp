#include "core/trace/tracing_device.h"

#include <fmt/format.h>

#include "core/trace/tracing_stream.h"

namespace orthant {

TracingDevice::TracingDevice(std::unique_ptr<Device> inner, Trace& trace)
    : Device(*inner), inner_(std::move(inner)), trace_(trace) {}

std::unique_ptr<Stream> TracingDevice::make_main_stream() {
  if (!inner_->asynchronous()) {
    trace_.main_stream_is_this_thread();
  }
  return std::make_unique<TracingStream>(inner_->make_main_stream(), *this, trace_, "main");
}

std::unique_ptr<Stream> TracingDevice::make_side_stream() {
  return std::make_unique<TracingStream>(inner_->make_side_stream(), *this, trace_, fmt::format("side {}", ++sides_));
}

std::unique_ptr<Stream> TracingDevice::make_host_stream() {
  return std::make_unique<TracingStream>(inner_->make_host_stream(), *this, trace_, fmt::format("host {}", ++sides_));
}

}  // namespace orthant
