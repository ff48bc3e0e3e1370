// Where the answer to a request ends.
#include "apps/serve/answer_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orthant::answer_fields_test {
namespace {

using testing::ElementsAre;

Request answer(const std::string& body) {
  const CompletionLimits limits{
      .model = "m", .vocabulary = 256, .ends = {.ids = {7}, .texts = {"\n\n"}}, .context = 64};
  return answer_of(RequestFields(body, answer_fields), limits);
}

// JSON may have the text in it that ends other answers of the model; its tokens of an end are never drawn.
TEST(AnswerFields, NoTextOfTheModelEndsJson) {
  EXPECT_THAT(answer(R"({"stop": "x"})").stop, ElementsAre("x", "\n\n"));
  EXPECT_THAT(answer(R"({"stop": "x", "response_format": {"type": "text"}})").stop, ElementsAre("x", "\n\n"));
  for (const std::string format :
       {R"({"type": "json_object"})",
        R"({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {}}}})"}) {
    const Request request = answer(R"({"stop": "x", "response_format": )" + format + "}");
    EXPECT_THAT(request.stop, ElementsAre("x")) << format;
    EXPECT_THAT(request.stop_ids, ElementsAre(7)) << format;
  }
}

}  // namespace
}  // namespace orthant::answer_fields_test
