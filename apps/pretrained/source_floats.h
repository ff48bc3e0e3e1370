// Elements of a published model's tensors as f32, whatever type they are stored in.
//
// F32, BF16 and F16 keep their values. An F8_E4M3 matrix is multiplied by its scales, one for each block of it or one
// for all of it, in f32: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.3;
// quantization_config.quant_method = "fp8". Experts in one tensor are as many matrices. Gate above up is one of them,
// whose blocks may hold rows of both, or has two scales for all of it. A U8 tensor NAME_blocks [..., 16] holds 32
// elements of 4 bits (E2M1) in each row, the first in the lower half of its byte, and NAME_scales [...] the exponent of
// two that they are multiplied by, plus 127: Open Compute Project, "Microscaling Formats (MX) Specification" (2023);
// quant_method = "mxfp4".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "apps/pretrained/config_link.h"
#include "apps/pretrained/source_weights.h"

namespace orthant {

// The part of a matrix that shares a scale; smaller at the matrix's ends. No size: all of it.
struct ScaleBlocks {
  std::int64_t rows = 0, columns = 0;
};

// What quantization_config says of a config.json; nothing where that is missing. where: begins messages.
// Errors: ConfigError naming what cannot be read, and what to do.
std::optional<ScaleBlocks> scale_blocks_in(const ConfigLink::Theirs& config, const std::string& where);

// Whether it says quant_method "mxfp4". Errors: ConfigError naming a key beside it that is not known.
bool says_mxfp4(const ConfigLink::Theirs& config, const std::string& where);

// Thread safety: const calls from any thread. The weights outlive it.
class SourceFloats {
 public:
  // in_mxfp4: tensors may be blocks of 4-bit elements, as the configuration says so.
  SourceFloats(const SourceWeights& weights, std::optional<ScaleBlocks> blocks, bool in_mxfp4)
      : weights_(weights), blocks_(blocks), in_mxfp4_(in_mxfp4) {}

  // The name of the tensor with the scales of this one; empty: it has none.
  std::string scales_of(const FileTensor& tensor) const;
  // The name under which a tensor may say how activations before this one are rounded where such a model is served in 8
  // bits; empty: there is none. It is no part of the weights.
  std::string activation_scale_of(const FileTensor& tensor) const;
  // Why the tensor cannot be read; empty: it can.
  std::string unreadable(const FileTensor& tensor) const;
  // Fills `out` with the elements of a tensor from `begin` on; of blocks of 4 bits with those that they hold. REQUIRES:
  // it can be read. Errors: Error naming the tensor for values that are not finite.
  void read(const std::string& name, std::int64_t begin, std::span<float> out) const;

 private:
  void read_blocks(const FileTensor& tensor, std::int64_t begin, std::span<float> out) const;
  void read_scaled(const FileTensor& tensor, std::int64_t begin, std::span<float> out) const;
  std::string unreadable_scaled(const FileTensor& tensor) const;

  // A tensor as matrices one behind the other, each with a grid of scales.
  struct Grid {
    std::int64_t matrices = 1, rows = 0, columns = 0;                      // columns: of all matrices
    std::int64_t block_rows = 0, block_columns = 0, down = 0, across = 0;  // of a matrix, and of its scales
    std::int64_t scales() const { return matrices * down * across; }
  };
  // scales: elements of their tensor, which tells whether gate and up share one.
  Grid grid_of(const FileTensor& tensor, std::int64_t scales) const;

  const SourceWeights& weights_;
  std::optional<ScaleBlocks> blocks_;
  bool in_mxfp4_;
};

}  // namespace orthant
