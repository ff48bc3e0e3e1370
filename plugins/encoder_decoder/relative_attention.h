// Self-attention with relative positions (relative_scores.h): queries, keys and values of one token space.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/part.h>

#include "relative_scores.h"

namespace orthant::encoder_decoder {

class RelativeAttention : public PartLayer {
 public:
  // n [T, d], the norm's output, of further tokens of sequences that begin with their first -> [T, d]. Outside of
  // training; not in an encoder.
  virtual Tensor step(const StepContext& ctx, const Tensor& n, const std::vector<KeptRows>& rows) const = 0;
};

// The table of a stack, shared by its blocks: [buckets, heads].
ParamSpec relative_table(const Settings& settings, const std::string& name, const std::vector<int>& links);

// `stem`.q, .k, .v, .o, and the table. both_ways: in an encoder.
std::unique_ptr<RelativeAttention> make_relative_attention(const std::string& stem, const std::string& table,
                                                           bool both_ways, const Parameters& parameters,
                                                           const Plan& plan);

}  // namespace orthant::encoder_decoder
