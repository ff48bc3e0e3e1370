// SpecialTexts: texts that are one token wherever they stand, where the tokenizer itself would cut them too: a .model
// reads the name of a control token as letters.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

class SpecialTexts {
 public:
  // Of two texts that begin at one place the first of the list is found. REQUIRES: each is a token of the tokenizer,
  // which outlives this.
  SpecialTexts(const Tokenizer& tokenizer, std::vector<std::string> texts);

  // The one that begins at `at`; empty: none.
  std::string_view found(std::string_view text, std::size_t at) const;
  // The ids of `text`, which has no such text in it, behind one (empty: at the beginning).
  std::vector<std::int32_t> behind(std::string_view special, const std::string& text);
  // Appends the ids of a text with such texts in it. Errors: as Encoder::encode.
  void encode(std::string_view text, std::vector<std::int32_t>& ids);

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> texts_;
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace orthant
