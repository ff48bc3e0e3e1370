// ChoiceWriter: one choice of a completion as JSON, from what the generator tells of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/lm/generator.h"
#include "apps/lm/text_stream.h"
#include "apps/serve/completion_request.h"
#include "apps/serve/tool_call_reader.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// Thread safety: none.
class ChoiceWriter {
 public:
  // index: among the request's choices. Both outlive this.
  ChoiceWriter(const Tokenizer& tokenizer, const CompletionRequest& request, std::size_t index);

  void add(const TokenEvent& event);
  bool done() const { return !finish_.is_null(); }
  std::int64_t made() const { return made_; }      // tokens of the answer
  std::int64_t cached() const { return cached_; }  // tokens of the prompt that were known already
  // There is something to tell since the last take().
  bool anything() const { return !text_.empty() || done() || !tokens_.empty() || !content_.empty() || !calls_.empty(); }
  // {"text", "index", "logprobs", "finish_reason"} of what has come since the last call; of a chat a "message" or, of
  // a stream, a "delta" in place of the text.
  OrderedJson take();
  // Of a chat's stream, before anything else of its choice.
  static OrderedJson first_delta(std::size_t index);

 private:
  void add_text(const TokenEvent& event);
  void add_scores(const TokenEvent& event);
  std::string token_bytes(std::int32_t id) const;
  std::string token_text(std::int32_t id) const;
  OrderedJson chat_score(const ScoredToken& token) const;
  OrderedJson take_chat();

  const Tokenizer& tokenizer_;
  const CompletionRequest& request_;
  const std::size_t index_;
  const std::span<const std::int32_t> prompt_;
  std::size_t prompt_told_ = 0;
  std::int64_t made_ = 0, cached_ = 0;
  TextStream said_;                   // every token of the choice, as text_offset counts it
  std::int64_t characters_ = 0;       // of that
  std::vector<std::int32_t> behind_;  // the last few tokens, which decide about the text of the next

  std::string text_;
  ToolCallReader reader_;       // of a chat that reads calls
  std::int64_t all_calls_ = 0;  // that were read of it
  OrderedJson finish_ = nullptr;
  OrderedJson tokens_ = OrderedJson::array(), token_logprobs_ = tokens_, top_logprobs_ = tokens_,
              text_offset_ = tokens_;
  OrderedJson content_ = tokens_;  // of a chat, in their place
  OrderedJson calls_ = tokens_;    // likewise
};

}  // namespace orthant
