// The C entry of a communicator that lives in a module of its own: liborthant_communicator_NAME.so.
//
// The loader compares the note of the file (library_note.h) with its own build before it opens it, then calls
// orthant_communicator_entry() and create(). Modules are never unloaded.
//
//   std::unique_ptr<orthant::Communicator> make(const orthant::CommunicatorConfig&);
//   ORTHANT_COMMUNICATOR("mine", make)
// or, where only the memory of one device can be moved:
//   ORTHANT_COMMUNICATOR_FOR("mine", "cuda", make)
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>

#include <orthant/group.h>
#include <orthant/plugin.h>

namespace orthant {

inline constexpr std::uint32_t communicator_abi = ORTHANT_COMMUNICATOR_ABI;

// What the program knows before there is a communicator.
struct CommunicatorConfig {
  int rank = -1;  // of the world; -1: the communicator finds rank and world size itself (mpirun, srun)
  int world_size = -1;
  double timeout_seconds = 60;  // a collective that waits longer fails
};

}  // namespace orthant

extern "C" {
struct orthant_communicator {
  std::uint32_t struct_size, abi;
  const char* build;  // ORTHANT_BUILD of library_note.h
  const char* name;
  const char* device;  // run.device must be this; null: any
  // Null on failure, with the reason in `error` (at most n bytes, terminated).
  orthant::Communicator* (*create)(const orthant::CommunicatorConfig* config, char* error, std::uint32_t n) noexcept;
  void (*destroy)(orthant::Communicator*) noexcept;
};
}

// Define the module's entry. `make`: std::unique_ptr<Communicator>(const CommunicatorConfig&), may throw.
#define ORTHANT_COMMUNICATOR(communicator_name, make) ORTHANT_COMMUNICATOR_FOR(communicator_name, nullptr, make)
#define ORTHANT_COMMUNICATOR_FOR(communicator_name, device_name, make)                                        \
  ORTHANT_LIBRARY_NOTE("communicator", ORTHANT_COMMUNICATOR_ABI)                                              \
  extern "C" __attribute__((visibility("default"))) const orthant_communicator* orthant_communicator_entry(); \
  extern "C" const orthant_communicator* orthant_communicator_entry() {                                       \
    static const orthant_communicator entry = {                                                               \
        sizeof(orthant_communicator),                                                                         \
        orthant::communicator_abi,                                                                            \
        ORTHANT_BUILD,                                                                                        \
        communicator_name,                                                                                    \
        device_name,                                                                                          \
        [](const orthant::CommunicatorConfig* config, char* error,                                            \
           std::uint32_t n) noexcept -> orthant::Communicator* {                                              \
          try {                                                                                               \
            return make(*config).release();                                                                   \
          } catch (const std::exception& problem) {                                                           \
            std::snprintf(error, n, "%s", problem.what());                                                    \
          } catch (...) {                                                                                     \
            std::snprintf(error, n, "unknown failure");                                                       \
          }                                                                                                   \
          return nullptr;                                                                                     \
        },                                                                                                    \
        [](orthant::Communicator* communicator) noexcept { delete communicator; }};                           \
    return &entry;                                                                                            \
  }
