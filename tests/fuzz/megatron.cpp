// Megatron's index of token ids.
#include "core/data/megatron_file.h"

#include <orthant/error.h>

#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

constexpr std::uint64_t bytes_of_ids = 16;

int read_index(const std::uint8_t* data, std::size_t size) {
  const ScratchFile file(data, size);
  try {
    parse_megatron_index(MappedFile(file.path()), bytes_of_ids);
  } catch (const Error&) {
  }
  return 0;
}

void append(std::string& file, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    file += static_cast<char>(value >> (8 * i) & 0xff);
  }
}

std::string index_of(int code, std::uint64_t width, const std::vector<std::uint64_t>& sizes,
                     const std::vector<std::uint64_t>& documents) {
  std::string file("MMIDIDX\0\0", 9);
  append(file, 1, 8);
  append(file, static_cast<std::uint64_t>(code), 1);
  append(file, sizes.size(), 8);
  append(file, documents.size(), 8);
  for (const std::uint64_t size : sizes) {
    append(file, size, 4);
  }
  std::uint64_t place = 0;
  for (const std::uint64_t size : sizes) {
    append(file, place, 8);
    place += size * width;
  }
  for (const std::uint64_t first : documents) {
    append(file, first, 8);
  }
  return file;
}

std::vector<std::string> index_seeds() {
  return {index_of(8, 2, {3, 1, 4}, {0, 2, 3}), index_of(4, 4, {4}, {0, 1}), index_of(5, 8, {0, 2}, {0, 1, 1, 2})};
}

}  // namespace

const Target megatron = {"megatron", read_index, index_seeds};

}  // namespace orthant::fuzz
