// The layers that orthant-bench measures: one routed layer each, of published models.
#pragma once

#include <orthant/ops.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace orthant::bench {

struct LayerShape {
  std::string_view name;
  std::int64_t tokens, d, n;  // T, model width, width of an expert
  std::int64_t experts, top_k;
  bool normalize_weights = true;  // switch: false
  Activation activation = Activation::swiglu;
  double capacity_factor = 0;  // 0: dropless
};

inline constexpr std::array layer_shapes = {
    LayerShape{"olmoe-1b-7b", 32768, 2048, 1024, 64, 8},
    LayerShape{"qwen3-30b-a3b", 32768, 2048, 768, 128, 8},
    LayerShape{"mixtral-8x7b", 16384, 4096, 14336, 8, 2},
    LayerShape{"deepseek-v3-ep8", 16384, 7168, 2048, 32, 8},
    LayerShape{"fine-grained-7b", 24576, 1536, 256, 128, 8},
    LayerShape{"fine-grained-30b", 32768, 4096, 256, 256, 16},
    LayerShape{"switch-base-64", 32768, 768, 2048, 64, 1, false, Activation::relu, 1.25},
    LayerShape{"switch-base-128", 32768, 768, 2048, 128, 1, false, Activation::relu, 1.25},
    // For trying the program out: seconds on a CPU.
    LayerShape{"tiny", 512, 64, 96, 8, 2},
    LayerShape{"tiny-switch", 512, 64, 96, 8, 1, false, Activation::relu, 1.25},
};

// Tokens of a group for capacity and balance: a sequence.
inline constexpr std::int64_t sequence_tokens = 4096;

}  // namespace orthant::bench
