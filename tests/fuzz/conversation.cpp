// A line of a chat file: what is not refused becomes tokens.
#include "plugins/tokenizer/chat/conversation.h"

#include <orthant/error.h>

#include "plugins/tokenizer/chat/chat_template.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

int read_line(const std::uint8_t* data, std::size_t size) {
  try {
    const auto bytes = load_tokenizer("bytes");
    std::vector<std::int32_t> coded;
    ChatEncoder(*bytes, chat_template("plain"))
        .encode(read_conversation({reinterpret_cast<const char*>(data), size}), coded);
  } catch (const Error&) {
  }
  return 0;
}

std::vector<std::string> line_seeds() {
  return {R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}, )"
          R"({"role": "assistant", "content": "c"}]})",
          R"({"prompt": "a", "completion": "b"})",
          R"({"instruction": "a", "input": "b", "output": "c", "n": [1, {}]})"};
}

}  // namespace

const Target conversation = {"conversation", read_line, line_seeds};

}  // namespace orthant::fuzz
