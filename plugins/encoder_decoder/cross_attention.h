// Attention of the decoder's tokens to those of the encoder, without positions (Raffel et al., 2020): queries of space
// 0, keys and values of the source.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <orthant/part.h>

namespace orthant::encoder_decoder {

class CrossAttention {
 public:
  // `stem`.q, .k, .v, .o.
  CrossAttention(const std::string& stem, int block, const Parameters& parameters, const Plan& plan);

  // n [T, d] of the target, memory [T_s, d] of the source, as the encoder has put it out -> [T, d].
  Tensor forward(const StepContext& ctx, const Tensor& n, const Tensor& memory, Saved& saved) const;
  // Keys and values of a source in the core, [T_s, h c] each, which stay the same while a target grows.
  struct Kept {
    Tensor k, v;
  };
  Kept keep(const StepContext& source, const Tensor& memory) const;
  // As forward, outside of training: each run of rows of n [T, d] attends to all of what its sequence has kept. Other
  // rows become what comes of zeros.
  struct Run {
    const Kept* kept = nullptr;
    std::int64_t row = 0, rows = 0;
  };
  Tensor step(const StepContext& ctx, const Tensor& n, const std::vector<Run>& runs) const;
  // dn and dmemory, in memory of their own.
  std::pair<Tensor, Tensor> backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  AttentionShape shape(const StepContext& ctx) const;
  // x [T, d] and m [T_s, d] have entered attention.
  Tensor queries(const StepContext& ctx, const Tensor& x) const;
  Kept keys(const StepContext& source, const Tensor& m) const;

  ParamRef q_;      // [h c, d]
  ParamMatrix kv_;  // [2 h c, d]
  ParamRef out_;    // [d, h c]
  std::int64_t heads_, core_heads_, channels_;
  int block_;
  float query_scale_;
};

}  // namespace orthant::encoder_decoder
