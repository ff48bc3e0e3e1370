// The same training on pairs in PyTorch, by a loop that is written from the papers. Opt-in: ORTHANT_PYTHON, or the
// environment that tests/reference/make_reference.sh makes.
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::torch_test {
namespace {

constexpr const char* base_toml = R"(
[run]
name = "base"
steps = 5
[data]
path = ["text.txt"]
sequence_length = 32
validation_fraction = 0.0
[batch]
sequences = 8
[model]
layers = 2
d_model = 32
heads = 4
kv_heads = 2
d_ff = 48
activation = "swiglu"
init_std = 0.1
[moe]
experts = 4
top_k = 2
[optimizer]
lr = 0.01
schedule = "constant"
)";

constexpr const char* pairs_toml = R"(
extends = ["base.toml"]
[run]
name = "p"
steps = 20
log_every = 1
[train]
from = "runs/base"
[data]
source = "pairs"
path = ["pairs.jsonl"]
chat_template = "own.toml"
sequence_length = 32
[batch]
sequences = 6
[moe]
aux_loss = 0
[optimizer]
lr = 1e-3
eps = 1e-5
weight_decay = 0
clip_grad_norm = 0
)";

struct Case {
  std::string loss;
  double beta, smoothing, nll;
  std::vector<std::string> layout;
};

TEST(PreferenceTorch, TrainsAlike) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with torch and transformers";
  }
  const run_test::ProgramFolder folder;
  std::string text, lines;
  for (int i = 0; i < 60; ++i) {
    text += "Both say the same? One trains on pairs of answers, 0123456789. ";
  }
  for (int i = 0; i < 6; ++i) {
    lines += nlohmann::json{{"prompt", std::string(1 + static_cast<std::size_t>(i % 3), static_cast<char>('a' + i))},
                            {"chosen", std::to_string(13 * i * i)},
                            {"rejected", std::string(1 + static_cast<std::size_t>(i), static_cast<char>('z' - i))}}
                 .dump() +
             "\n";
  }
  folder.write("text.txt", text);
  folder.write("pairs.jsonl", lines);
  folder.write("own.toml", "[user]\nbefore = \"?\"\nafter = \"=\"\n[assistant]\nend = \".\"\n");
  folder.write("base.toml", base_toml);
  folder.write("p.toml", pairs_toml);
  ASSERT_EQ(folder.orthant({"train", "base.toml"}).code, 0);
  ASSERT_EQ(folder.orthant({"export", "runs/base", "-o", "base"}).code, 0);
  for (const Case& c : {Case{"sigmoid", 0.1, 0, 0, {}},
                        Case{"sigmoid", 0.5, 0.1, 0.2, {"plugins.sequence.size=2", "plugins.pipeline.size=2"}},
                        Case{"ipo", 0.2, 0, 0, {"plugins.data.size=2", "batch.micro_batch=1"}}}) {
    SCOPED_TRACE(c.loss);
    std::vector<std::string> values = c.layout;
    values.insert(values.end(), {"preference.loss=\"" + c.loss + "\"", fmt::format("preference.beta={}", c.beta),
                                 fmt::format("preference.label_smoothing={}", c.smoothing),
                                 fmt::format("preference.nll_weight={}", c.nll)});
    const run_test::Result trained = folder.orthant(run_test::with_set({"launch", "p.toml"}, values));
    ASSERT_EQ(trained.code, 0) << trained.error;
    const auto checked = folder.command(
        {paths::python(), "-B", paths::source("tests/reference/check_preference.py"), folder.path("base").string(),
         folder.path("pairs.jsonl").string(), (folder.run("p") / "metrics.jsonl").string(), c.loss,
         fmt::format("{}", c.beta), fmt::format("{}", c.smoothing), fmt::format("{}", c.nll), "1e-3"});
    if (checked.code == 3) {
      GTEST_SKIP() << paths::python() << " lacks torch or transformers";
    }
    ASSERT_EQ(checked.code, 0) << checked.error;
    double loss = 1, others = 1;
    int steps = 0;
    ASSERT_EQ(std::sscanf(checked.output.c_str(), "%lf %lf %d", &loss, &others, &steps), 3) << checked.output;
    EXPECT_EQ(steps, 20);
    EXPECT_LT(loss, 1e-5);
    EXPECT_LT(others, 1e-4);
  }
}

}  // namespace
}  // namespace orthant::torch_test
