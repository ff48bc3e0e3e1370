// Added tokens: texts that are one token wherever they stand, found before anything is cut.
//
// Internal to plugins/tokenizer. Thread safety: constant.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plugins/tokenizer/regex.h"

namespace orthant {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool single_word = false;  // not within a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // is looked for in normalized text
  bool special = false;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Each with the text to look for. Empty texts are left out.
  explicit AddedTokens(std::vector<std::pair<std::string, AddedToken>> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls section(span, token) for what lies between tokens (nullptr) and for the tokens, in order. The leftmost
  // token wins, of those that begin at one place the longest.
  template <class Section>
  void sections(std::string_view text, const Section& section) const {
    std::size_t covered = 0;
    for (std::size_t from = 0; from < text.size();) {
      const std::optional<Found> found = find(text, from);
      if (!found) {
        break;
      }
      from = found->span.end;
      const AddedToken& token = *found->token;
      TextSpan span = found->span;
      if (token.single_word && !stands_alone(text, span)) {
        continue;
      }
      if (token.lstrip) {
        span.begin = std::max(left_of_space(text, span.begin), covered);
      }
      if (token.rstrip) {
        span.end = right_of_space(text, span.end);
      }
      if (covered < span.begin) {
        section(TextSpan{covered, span.begin}, static_cast<const AddedToken*>(nullptr));
      }
      section(span, &token);
      covered = span.end;
    }
    if (covered < text.size()) {
      section(TextSpan{covered, text.size()}, static_cast<const AddedToken*>(nullptr));
    }
  }

 private:
  struct Found {
    TextSpan span;
    const AddedToken* token;
  };
  // A trie over bytes.
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> next;  // byte, node
    std::int32_t token = -1;
  };
  std::optional<Found> find(std::string_view text, std::size_t from) const;
  bool stands_alone(std::string_view text, TextSpan span) const;
  static std::size_t left_of_space(std::string_view text, std::size_t end);
  static std::size_t right_of_space(std::string_view text, std::size_t begin);
  const Node* child(const Node& node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  bool begins_[256] = {};  // bytes that a token begins with
  Regex word_ = Regex::pattern(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}])");  // Rust's \w
};

}  // namespace orthant
