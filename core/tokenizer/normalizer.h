// Normalizers: what a tokenizer.json does to a text before it is cut into words.
//
// Internal to core/tokenizer. Thread safety: constant; the work belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/tokenizer/json_field.h"
#include "core/tokenizer/regex.h"

namespace orthant {

struct NormalizerWork {
  RegexWork regex;
  std::string other;  // the text before the step that is being done
  std::vector<std::int32_t> codes;
};

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // REQUIRES: UTF-8. The result is UTF-8.
  virtual void apply(std::string& text, NormalizerWork& work) const = 0;
};

// One after another. Empty: the text stays as it is.
using Normalizer = std::vector<std::unique_ptr<NormalizerStep>>;

// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence. Errors: ConfigError for any other.
Normalizer read_normalizer(const JsonField& field);

void normalize(const Normalizer& normalizer, std::string& text, NormalizerWork& work);

// {"String": ...} or {"Regex": ...}. Errors: ConfigError naming the place.
Regex read_pattern(const JsonField& field);

}  // namespace orthant
