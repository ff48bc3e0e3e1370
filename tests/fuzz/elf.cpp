// A library, as it is and with its checksum repaired.
#include <orthant/error.h>

#include <fstream>
#include <iterator>

#include "core/base/keyed_hash.h"
#include "core/modules/read_library.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

void read(const std::string& content) {
  try {
    read_library(content);
  } catch (const Error&) {
  }
}

std::string stamped(const std::string& content) {
  return content + "orthant-sha256:" + sha256_hex(content) + "\n";
}

int run(const std::uint8_t* data, std::size_t size) {
  const std::string content(reinterpret_cast<const char*>(data), size);
  read(content);
  read(stamped(content));
  return 0;
}

// The library is a small one of its own (seed_library.cpp).
std::vector<std::string> seeds() {
  std::ifstream in(ORTHANT_FUZZ_LIBRARY, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  require(!whole.empty(), "there is no {}", ORTHANT_FUZZ_LIBRARY);
  return {whole, stamped(whole)};
}

}  // namespace

const Target elf = {"elf", run, seeds};

}  // namespace orthant::fuzz
