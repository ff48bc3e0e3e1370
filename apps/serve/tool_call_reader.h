// ToolCallReader: calls of tools in the text of an answer, as models of the Hermes and Qwen families write them:
//
//   <tool_call>{"name": NAME, "arguments": {...}}</tool_call>
//
// What is none of that form stays text, and so does what a model writes between <think> and </think>, where it may try
// a call without making it. Blanks beside a call are no part of it, but for those that keep two texts apart.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct ToolCall {
  std::string name, arguments;  // JSON, as the model wrote it
};

// Thread safety: none.
class ToolCallReader {
 public:
  static constexpr std::string_view begin_mark = "<tool_call>", end_mark = "</tool_call>";
  static constexpr std::string_view begin_of_thought = "<think>", end_of_thought = "</think>";

  // in_thought: the prompt has begun one.
  explicit ToolCallReader(bool in_thought = false) : in_thought_(in_thought) {}

  // More of the answer. `last`: it has ended, and by itself where `stopped`: a call whose end mark is missing then is
  // one.
  void add(std::string_view text, bool last, bool stopped);
  // What has become certain since it was taken.
  std::string text;
  std::vector<ToolCall> calls;

 private:
  void take_block(std::string_view block, std::string_view whole);
  void tell(std::string_view said);
  // The same, but for blanks behind a call that no text follows.
  void say(std::string_view said);

  std::string held_;  // what may be part of a mark, or of blanks before one, or a call that has not ended
  bool in_thought_;
  bool called_ = false;  // there was a call, and nothing but blanks since
  bool told_ = false;    // there was text
  std::string gap_;      // blanks between it and the calls since
};

}  // namespace orthant
