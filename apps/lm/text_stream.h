// TextStream: ids become text one after another, a piece at a time, without half characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

// Thread safety: none.
class TextStream {
 public:
  // Tokens that decide about the text of the next one: a character may have four of them.
  static constexpr std::size_t context = 8;

  // before: ids that the text goes on from; they decide whether a space comes first, and are not part of it. The
  // tokenizer outlives this.
  TextStream(const Tokenizer& tokenizer, std::vector<std::int32_t> before);

  // What becomes certain by this id: whole characters. All pieces together are the text of all ids but for what the
  // last of them left unfinished.
  std::string add(std::int32_t id);
  // What is left: bytes that are no UTF-8 become U+FFFD.
  std::string finish();

 private:
  std::string rest() const;

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> ids_;  // the last few of `before`, and what follows
  std::size_t given_ = 0;          // bytes of decode(ids_) that were given, or came before
};

}  // namespace orthant
