// How a text of a model begins and ends: the one answer for training, serving, evaluation and export.
//
//   begins  with bos where the rules say so, else where the tokenizer's files do. Whoever encodes a text adds it,
//   unless
//           the text itself begins with it: no text has two.
//   ends    at an id of `end_ids`, or where there is none at the tokenizer's eos; and at a text of `end_texts`.
//
// The rules of a run come from what it began with and from its chat template (core/run/run_text_rules.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/special_texts.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

struct TextRules {
  std::optional<bool> bos = {};            // whether a text begins with it; nothing: as the tokenizer's files say
  std::vector<std::string> special = {};   // texts that are one token, of a chat template
  std::vector<std::int32_t> end_ids = {};  // the first is the one that was published first
  std::vector<std::string> end_texts = {};
  std::string chat_template = {};  // Jinja, as a run of its own was trained by one; empty: as published

  bool operator==(const TextRules&) const = default;
  bool empty() const { return *this == TextRules(); }
};

// `more` beside `rules`: its bos and chat template go before, and no end is lost. tokenizer: whose eos is an end where
// `rules` have none. Ends that are there already are not added.
TextRules joined(TextRules rules, const TextRules& more, const Tokenizer& tokenizer);

bool begins_with_bos(const Tokenizer& tokenizer, const TextRules& rules);
std::vector<std::int32_t> end_ids(const Tokenizer& tokenizer, const TextRules& rules);
// For the user: "texts begin without bos and end at id 5".
std::string described(const TextRules& rules, const Tokenizer& tokenizer);

// Texts as a model of these rules reads them: names of special tokens are the tokens. Thread safety: none.
class TextReader {
 public:
  TextReader(const Tokenizer& tokenizer, const TextRules& rules);
  // bos: in place of what the rules say. Errors: as Encoder::encode.
  std::vector<std::int32_t> ids(std::string_view text, std::optional<bool> bos = {});

 private:
  const Tokenizer& tokenizer_;
  bool bos_;
  SpecialTexts special_;
};

}  // namespace orthant
