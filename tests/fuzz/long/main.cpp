// One target under libFuzzer: fuzz_NAME CORPUS [options]. The seeds are put into the folder CORPUS first.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  if (*count > 1 && std::filesystem::is_directory((*arguments)[1])) {
    int number = 0;
    for (const std::string& seed : orthant::fuzz::ORTHANT_FUZZ_TARGET.seeds()) {
      std::ofstream(fmt::format("{}/seed_{}", (*arguments)[1], number++), std::ios::binary) << seed;
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return orthant::fuzz::ORTHANT_FUZZ_TARGET.run(data, size);
}
