// A token file, as it is and with its checksums repaired.
#include "core/data/token_file.h"

#include <orthant/error.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/base/mapped_file.h"
#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

constexpr std::size_t header = 64;

std::uint64_t number(const std::string& file, std::size_t at) {
  std::uint64_t value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}
void put(std::string& file, std::size_t at, std::uint64_t value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

void open(const std::string& content) {
  const ScratchFile file(content.data(), content.size());
  try {
    read_token_file(MappedFile(file.path()), true);
  } catch (const Error&) {
  }
}

void repair(std::string& file) {
  const std::uint64_t places = std::min<std::uint64_t>(number(file, 32), (file.size() - header) / 16) * 16;
  const std::size_t tokens = header + places;
  put(file, 40, XXH3_64bits(file.data() + tokens, file.size() - tokens));
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, file.data(), 56);
  XXH3_64bits_update(&state, file.data() + header, places);
  put(file, 56, XXH3_64bits_digest(&state));
}

int run(const std::uint8_t* data, std::size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  open(file);
  if (file.size() >= header) {
    repair(file);
    open(file);
  }
  return 0;
}

std::string made(std::uint32_t width, std::uint64_t vocabulary, const std::vector<std::uint64_t>& places,
                 std::uint64_t tokens) {
  std::string file("ORTHTOKN\x01\0\0\0", 12);
  file.append(reinterpret_cast<const char*>(&width), 4);
  file.resize(header + places.size() * 8 + tokens * width);
  put(file, 16, vocabulary);
  put(file, 24, tokens);
  put(file, 32, places.size() / 2);
  for (std::size_t i = 0; i < places.size(); ++i) {
    put(file, header + 8 * i, places[i]);
  }
  repair(file);
  return file;
}

std::vector<std::string> seeds() {
  return {made(2, 256, {0, 2, 4, 8}, 8), made(4, 70000, {0, 5}, 5), made(2, 256, {}, 3)};
}

}  // namespace

const Target tokens = {"tokens", run, seeds};

}  // namespace orthant::fuzz
