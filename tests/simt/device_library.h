// The library of device "simt", for tests that choose the order of its streams and count what waits.
#pragma once

#include <dlfcn.h>

#include <orthant/error.h>

#include <cstdint>
#include <cstdlib>

#include "tests/support/paths.h"

namespace orthant::test {

class SimtLibrary {
 public:
  SimtLibrary() : library_(dlopen(paths::build("lib/liborthant_device_simt.so").c_str(), RTLD_NOW | RTLD_LOCAL)) {
    require(library_ != nullptr, "the device simt cannot be loaded: {}", dlerror());
  }
  ~SimtLibrary() {
    defer(0);
    only_count(false);
  }

  // tests/simt/streams.h: seed 0 runs everything at once.
  void defer(std::uint64_t seed) const {
    reinterpret_cast<void (*)(std::uint64_t)>(dlsym(library_, "orthant_simt_defer"))(seed);
  }
  std::int64_t waits() const { return reinterpret_cast<std::int64_t (*)()>(dlsym(library_, "orthant_simt_waits"))(); }
  std::int64_t events() const { return reinterpret_cast<std::int64_t (*)()>(dlsym(library_, "orthant_simt_events"))(); }
  std::int64_t recordings() const {
    return reinterpret_cast<std::int64_t (*)()>(dlsym(library_, "orthant_simt_recordings"))();
  }
  std::int64_t launches() const {
    return reinterpret_cast<std::int64_t (*)()>(dlsym(library_, "orthant_simt_launches"))();
  }
  // Kernels are counted and not run.
  void only_count(bool on) const { reinterpret_cast<void (*)(bool)>(dlsym(library_, "orthant_simt_only_count"))(on); }

 private:
  void* library_;
};

// An environment variable for as long as the object lives.
class WithVariable {
 public:
  WithVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~WithVariable() { unsetenv(name_); }
  WithVariable(const WithVariable&) = delete;
  WithVariable& operator=(const WithVariable&) = delete;

 private:
  const char* name_;
};

}  // namespace orthant::test
