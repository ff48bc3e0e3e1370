// Self-attention with relative positions (relative_scores.h): queries, keys and values of one token space.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/part.h>

namespace orthant::encoder_decoder {

// The table of a stack, shared by its blocks: [buckets, heads].
ParamSpec relative_table(const Settings& settings, const std::string& name, const std::vector<int>& links);

// `stem`.q, .k, .v, .o, and the table. both_ways: in an encoder.
std::unique_ptr<PartLayer> make_relative_attention(const std::string& stem, const std::string& table, bool both_ways,
                                                   const Parameters& parameters, const Plan& plan);

}  // namespace orthant::encoder_decoder
