// The clients that people use, where ORTHANT_PYTHON has them: the openai package, and lm-eval's local-completions
// and local-chat-completions.
#include "tests/serve/served_model.h"

namespace orthant::serve_test {
namespace {

class Clients : public ServedModel, public testing::WithParamInterface<std::string> {};

TEST_P(Clients, GetWhatTheyExpect) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python";
  }
  folder_.write(
      "runs/r/text_rules.json",
      R"({"format": 1, "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"})");
  serve();
  const auto found =
      folder_.command({paths::python(), "-B", paths::source("tests/serve/clients.py"), GetParam(),
                       "http://127.0.0.1:" + std::to_string(port_) + "/v1", "r", folder_.path().string()});
  if (found.code == 3) {
    GTEST_SKIP() << paths::python() << " lacks " << GetParam();
  }
  EXPECT_EQ(found.code, 0) << found.output << found.error;
  EXPECT_EQ(end(), 0);
}

INSTANTIATE_TEST_SUITE_P(Serve, Clients, testing::Values("openai", "lm_eval"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace orthant::serve_test
