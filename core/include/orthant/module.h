// A module: a library that is opened at run time. It is a plugin, a communicator or a device, and every kind exports
// one C symbol, orthant_module_entry. The loader reads the note of the file (library_note.h) before it opens it, so
// that nothing of a library that was built otherwise runs. Modules are never unloaded.
//
//   ORTHANT_PLUGIN("mine", Mine)              a class that derives from orthant::Plugin (plugin.h)
//   ORTHANT_COMMUNICATOR("mine", make)        std::unique_ptr<orthant::Communicator> make(const CommunicatorConfig&)
//   ORTHANT_DEVICE("mine", make, check)       std::unique_ptr<orthant::Device> make(const DeviceConfig&)
//
// Each stands once in a library, at namespace scope. Exceptions of what they name become the loader's messages.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>

#include <orthant/abi/modules.h>
#include <orthant/device.h>
#include <orthant/group.h>
#include <orthant/library_note.h>

namespace orthant {

// What the program knows before there is a communicator.
struct CommunicatorConfig {
  int rank = -1;  // of the world; -1: the communicator finds rank and world size itself (mpirun, srun)
  int world_size = -1;
  double timeout_seconds = 60;  // a collective that waits longer fails
};

struct DeviceConfig {
  int threads = 1;  // CPU threads that operations of the rank may use
  bool deterministic =
      true;  // the same bits each time; false: a library's sums may run in any order where that is fast
};

}  // namespace orthant

extern "C" {
struct orthant_module {
  const char* name;
  const char* needs_device;  // communicators: run.device must be this; null: any
  // Null on failure, with the reason in `error` (at most n bytes, terminated). `config`: null for a plugin, else the
  // struct above for the kind. The result is an orthant::Plugin*, Communicator* or Device*.
  void* (*create)(const void* config, char* error, std::uint32_t n) noexcept;
  void (*destroy)(void*) noexcept;
  // Whether create can be expected to work here, at little cost: false with the reason. Null: it can.
  bool (*check)(char* error, std::uint32_t n) noexcept;
};
}

namespace orthant::module_detail {

template <class Work>
auto guarded(char* error, std::uint32_t n, Work work) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& failure) {
    std::snprintf(error, n, "%s", failure.what());
  } catch (...) {
    std::snprintf(error, n, "an exception that is no std::exception");
  }
  return {};
}

// The entry of a module whose objects are `make`'s, as pointers to Interface.
template <class Interface, auto make>
void* create(const void* config, char* error, std::uint32_t n) noexcept {
  return guarded(error, n, [config]() -> void* { return static_cast<Interface*>(make(config).release()); });
}
template <class Interface>
void destroy(void* object) noexcept {
  delete static_cast<Interface*>(object);
}
template <auto check>
bool run_check(char* error, std::uint32_t n) noexcept {
  return guarded(error, n, [] { return check(), true; });
}

}  // namespace orthant::module_detail

#define ORTHANT_MODULE(KIND, NAME, NEEDS_DEVICE, INTERFACE, CHECK, ...)                                              \
  ORTHANT_LIBRARY_NOTE(KIND, ORTHANT_ABI)                                                                            \
  extern "C" __attribute__((visibility("default"))) const orthant_module* orthant_module_entry();                    \
  extern "C" const orthant_module* orthant_module_entry() {                                                          \
    static const orthant_module entry = {NAME, NEEDS_DEVICE, orthant::module_detail::create<INTERFACE, __VA_ARGS__>, \
                                         orthant::module_detail::destroy<INTERFACE>, CHECK};                         \
    return &entry;                                                                                                   \
  }

#define ORTHANT_COMMUNICATOR(NAME, MAKE) ORTHANT_COMMUNICATOR_FOR(NAME, nullptr, MAKE)
// For memory of one device alone.
#define ORTHANT_COMMUNICATOR_FOR(NAME, DEVICE, MAKE)                                                       \
  ORTHANT_MODULE("communicator", NAME, DEVICE, orthant::Communicator, nullptr, [](const void* arguments) { \
    return MAKE(*static_cast<const orthant::CommunicatorConfig*>(arguments));                              \
  })

// CHECK: void(), throws where there is no such device on this machine.
#define ORTHANT_DEVICE(NAME, MAKE, CHECK)                                                            \
  ORTHANT_MODULE("device", NAME, nullptr, orthant::Device, orthant::module_detail::run_check<CHECK>, \
                 [](const void* arguments) { return MAKE(*static_cast<const orthant::DeviceConfig*>(arguments)); })
