// Normalizers: what a tokenizer.json does to a text before it is cut into words.
//
// Internal to plugins/tokenizer. Thread safety: constant; the work belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/tokenizer/json_field.h"
#include "plugins/tokenizer/regex.h"

namespace orthant {

// How much longer a text may become by the steps of a tokenizer.json. Unicode's forms make eleven bytes of one, and
// Replace a few; steps that multiply each other would take all memory.
class TextGrowth {
 public:
  explicit TextGrowth(std::size_t bytes) : before_(bytes) {}
  // Errors: Error, naming `steps`, where a text of so many bytes is too long.
  void require_room(std::size_t bytes, const char* steps) const;

 private:
  std::size_t before_;
};

struct NormalizerWork {
  RegexWork regex;
  TextGrowth growth{0};
  std::string other;  // the text before the step that is being done
  std::vector<std::int32_t> codes;
};

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // REQUIRES: UTF-8. The result is UTF-8. A step that may multiply a text asks work.growth while it does.
  virtual void apply(std::string& text, NormalizerWork& work) const = 0;
};

// One after another. Empty: the text stays as it is.
using Normalizer = std::vector<std::unique_ptr<NormalizerStep>>;

// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence. Errors: ConfigError for any other.
Normalizer read_normalizer(const JsonField& field);

// Errors: Error for a text that becomes too long (TextGrowth).
void normalize(const Normalizer& normalizer, std::string& text, NormalizerWork& work);

// {"String": ...} or {"Regex": ...}. Errors: ConfigError naming the place.
Regex read_pattern(const JsonField& field);

}  // namespace orthant
