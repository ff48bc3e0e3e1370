// Logits of a published model by Hugging Face's transformers, in a Python of the user's: is what we read that model?
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/pretrained/sample_logits.h"

namespace orthant {

// The model of `folder` in fp32 on the CPU, on one sequence of these ids; the source of an encoder-decoder is
// sample_source of them. python: a program with torch and
// transformers, looked up in PATH where it has no slash; it loads no code and nothing from the network. Returned:
// [tokens, V], by "transformers 5.1.0, torch 2.9.0". Errors: Error with the last of what it said, where it cannot be
// run, lacks a package, or cannot load the model.
Logits peer_logits(const std::string& python, const std::filesystem::path& folder,
                   const std::vector<std::int32_t>& token);

}  // namespace orthant
