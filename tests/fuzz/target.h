// What a fuzzer drives: a reader of bytes from outside, and good inputs to begin from.
//
// A target returns for every input: what is refused is refused by Error. Anything else that leaves it, a signal or a
// report of a sanitizer is a finding. The same targets run under gtest (fuzz_test.cpp) and libFuzzer (long/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace orthant::fuzz {

struct Target {
  const char* name;
  int (*run)(const std::uint8_t* data, std::size_t size);  // the shape of LLVMFuzzerTestOneInput
  std::vector<std::string> (*seeds)();
};

extern const Target config, manifest, safetensors, tokens, hostfile, rendezvous, elf, tokenizer, megatron, conversation,
    published, request_head;

}  // namespace orthant::fuzz
