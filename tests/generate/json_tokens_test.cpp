// Which tokens go on with an answer that is JSON.
#include "apps/lm/json_tokens.h"

#include <gtest/gtest.h>
#include <orthant/error.h>

#include <string>
#include <vector>

#include "core/base/ordered_json.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant::json_tokens_test {
namespace {

// That is the request's fault, and the server goes on.
TEST(JsonTokens, AVocabularyThatCannotWriteItIsSaid) {
  const JsonTokens bytes(*load_tokenizer("bytes"), 100);
  JsonAnswer answer;
  ASSERT_TRUE(answer.add(std::string(64, ' ')));  // so that a brace, byte 123, must follow
  std::vector<float> logits(100, 1);
  EXPECT_THROW(bytes.allow(answer, logits, {}), ConfigError);
}

TEST(JsonTokens, AreTriedAsTheirBytesWouldBe) {
  // Tokens of several bytes, many of which begin alike.
  const JsonSchema schema(OrderedJson::parse(R"({"type": "object", "properties": {"ab": {"enum": ["x", "xy"]},
    "abc": {"type": "integer"}}, "required": ["abc"]})"),
                          "s");
  const auto tokenizer = load_tokenizer("bytes");
  const JsonTokens bytes(*tokenizer, 256);
  for (const std::string before :
       {"", "{", "{\"", "{\"ab", "{\"ab\"", "{\"ab\":", "{\"ab\":\"x", "{\"abc\":1", "{\"abc\":-"}) {
    JsonAnswer answer(&schema);
    ASSERT_TRUE(answer.add(before));
    std::vector<float> logits(256, 1);
    bytes.allow(answer, logits, {});
    for (int c = 0; c < 256; ++c) {
      JsonAnswer tried = answer;
      EXPECT_EQ(logits[static_cast<std::size_t>(c)] == 1, tried.add(static_cast<char>(c))) << before << " " << c;
    }
  }
}

}  // namespace
}  // namespace orthant::json_tokens_test
