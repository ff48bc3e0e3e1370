// What the depths of multi-token prediction (core/model/mtp.h) are asked for: each position the token k + 1 places
// further on, depth k = 1, 2, ...
#pragma once

#include <orthant/objective.h>

#include <vector>

namespace orthant {

inline constexpr const char* multi_token_name = "multi_token";

// i32 [T], for each depth of model.mtp_depth: the tokens and labels so many places further on. Label -1: there is none,
// or the document has ended.
struct TokensAhead final : ObjectiveBatch {
  struct Depth {
    Tensor token, label;
  };
  std::vector<Depth> depths;
};

}  // namespace orthant
