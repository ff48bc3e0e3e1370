// The conformance suite on the mpi communicator: one rank. Run under mpirun by mpi_test.cpp.
//
//   comm_conformance_mpi            the suite
//   comm_conformance_mpi late       rank 1 stays away from a barrier for longer than the timeout
#include <orthant/communicator_plugin.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "core/plugin_loader.h"
#include "tests/comm/conformance.h"

namespace {

using namespace orthant;

void run(const char* mode) {
  using Entry = const orthant_communicator* (*)();
  const auto entry =
      reinterpret_cast<Entry>(load_symbol("liborthant_communicator_mpi", "orthant_communicator_entry"))();
  require(entry->abi == communicator_abi && std::strcmp(entry->build, ORTHANT_BUILD) == 0 &&
              std::strcmp(entry->name, "mpi") == 0,
          "the module says {} abi {} build '{}'", entry->name, entry->abi, entry->build);
  CommunicatorConfig config;
  config.timeout_seconds = std::strcmp(mode, "late") == 0 ? 0.5 : 60;
  char error[1000] = "";
  const std::unique_ptr<Communicator, void (*)(Communicator*)> world(entry->create(&config, error, sizeof(error)),
                                                                     entry->destroy);
  require(world != nullptr, "no communicator: {}", error);
  if (std::strcmp(mode, "late") == 0) {
    test::Rig rig;
    std::vector<int> all(static_cast<std::size_t>(world->size()));
    std::iota(all.begin(), all.end(), 0);
    const auto group = world->split("data", all);
    group->barrier(*rig.stream);
    if (world->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    group->barrier(*rig.stream);
    return;
  }
  test::Conformance(*world).run({0, 1, 1000, 5003});
  if (world->rank() == 0) {
    std::printf("conformance passed on %d ranks\n", world->size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}
