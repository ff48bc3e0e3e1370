// JsonTokens: which tokens go on with an answer that is JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/lm/json_answer.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// What each token adds to a text that goes on. Thread safety: constant.
class JsonTokens {
 public:
  JsonTokens(const Tokenizer& tokenizer, std::int64_t vocabulary);
  const std::string& of(std::int32_t token) const { return bytes_[static_cast<std::size_t>(token)]; }
  // -infinity for tokens that cannot follow: of no bytes, in `ends`, or that lead out of what was asked for. Errors:
  // ConfigError where none is left.
  void allow(const JsonAnswer& answer, std::span<float> logits, std::span<const std::int32_t> ends) const;

 private:
  // A token and how many of its first bytes the one before has too.
  struct Sorted {
    std::int32_t id = 0;
    std::size_t shared = 0;
  };
  std::vector<std::string> bytes_;  // by id; empty: of no token
  std::vector<Sorted> sorted_;      // by bytes, those that have some
  std::size_t longest_ = 0;
};

}  // namespace orthant
