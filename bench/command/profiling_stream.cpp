#include "bench/command/profiling_stream.h"

#include <chrono>

namespace orthant {

void ProfilingStream::measure(const char* name, const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  inner_->synchronize();
  Entry& entry = entries_[name];
  entry.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ++entry.calls;
}

void ProfilingStream::host(std::function<void()> work) {
  measure("collectives", [&] { inner_->host(std::move(work)); });
}

void ProfilingStream::forward(const char* name, std::initializer_list<Tensor>, Operation operation) {
  measure(name, [&] { operation(*inner_); });
}

}  // namespace orthant
