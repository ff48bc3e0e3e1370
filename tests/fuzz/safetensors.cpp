// A safetensors file of anybody's.
#include "core/checkpoint/safetensors.h"

#include <orthant/error.h>

#include <array>
#include <cstring>

#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

int run(const std::uint8_t* data, std::size_t size) {
  const ScratchFile file(data, size);
  try {
    const SafetensorsReader reader(file.path());
    volatile std::byte last{};
    for (const FileTensor& tensor : reader.tensors()) {
      const auto bytes = reader.bytes(tensor);
      last = bytes.empty() ? std::byte{0} : bytes.back();
    }
    static_cast<void>(last);
  } catch (const Error&) {
  }
  return 0;
}

std::string with_header(const std::string& header, std::size_t bytes) {
  std::uint64_t size = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &size, 8);
  return text + header + std::string(bytes, 'x');
}

std::vector<std::string> seeds() {
  return {with_header(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"__metadata__":{"k":"v"}})",
                      26),
          with_header(R"({"e":{"dtype":"I64","shape":[0,9],"data_offsets":[0,0]}})", 0), with_header("{}   ", 0)};
}

}  // namespace

const Target safetensors = {"safetensors", run, seeds};

}  // namespace orthant::fuzz
