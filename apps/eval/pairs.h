// Texts of models whose answers have a source beside them (orthant/stepwise.h): what such a model is asked, as tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <orthant/stepwise.h>

#include "apps/eval/score.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

class PairReader {
 public:
  // positions: the most tokens of a target. All outlive this.
  PairReader(const Stepwise& kind, const Settings& settings, const Tokenizer& tokenizer, std::int64_t positions)
      : kind_(kind), settings_(settings), tokenizer_(tokenizer), positions_(positions) {}

  // How likely `target` is as the answer to `source`, with the token that ends it. where: begins messages. Errors:
  // ConfigError for an empty text, and one that the model has no positions for.
  ScoredSequence sequence(std::string_view source, std::string_view target, const std::string& where) const;

  struct File {
    std::vector<ScoredSequence> pairs;
    std::int64_t bytes = 0, tokens = 0;  // of targets
  };
  // JSON lines: {"source": T, "target": T}. Errors: ConfigError naming the line.
  File file(const std::string& path) const;

 private:
  const Stepwise& kind_;
  const Settings& settings_;
  const Tokenizer& tokenizer_;
  std::int64_t positions_;
};

}  // namespace orthant
