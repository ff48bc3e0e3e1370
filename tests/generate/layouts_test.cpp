// `orthant generate --layout`: several ranks answer as one does, bit for bit where no sum changes its order; elsewhere
// as training's forward pass of that layout. What cannot answer is refused, and nobody is left waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "apps/lm/generate.h"
#include "core/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::generate_layouts_test {
namespace {

using testing::HasSubstr;

// In the order of their places.
struct Answers {
  std::vector<GeneratedText> texts;
  Generated generated;
};

class Folder {
 public:
  Folder() {
    write("ids.jsonl",
          "{\"ids\": [1, 2, 3]}\n{\"ids\": [5, 9, 30, 7, 1, 2, 8, 11, 37]}\n{\"ids\": [4]}\n"
          "{\"ids\": [4, 6, 4, 6, 4]}\n{\"ids\": [20, 0]}\n");
  }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = (folder_.path() / name).string();
    std::ofstream(file) << text;
    return file;
  }

  GenerateOptions options(const std::string& model) const {
    GenerateOptions o;
    o.model = paths::published_model(model);
    o.files = {(folder_.path() / "ids.jsonl").string()};
    o.tokenizer = "none";
    o.max_tokens = 12;
    o.samples = 2;
    o.sampling.seed = 7;
    o.log_probabilities = true;
    o.verify = true;
    o.threads = 2;
    return o;
  }

 private:
  launch_test::TemporaryFolder folder_;
};

Answers answers_of(const GenerateOptions& options) {
  Answers found;
  std::map<std::pair<std::size_t, std::size_t>, GeneratedText> by_place;
  found.generated = generate(options, keys_of_plugin, kinds_of_plugin, {}, [&](const GeneratedText& text) {
    by_place[{text.place.prompt, text.place.sample}] = text;
    return true;
  });
  for (const auto& [place, text] : by_place) {
    found.texts.push_back(text);
  }
  return found;
}

// Whether tokens are equal, and log-probabilities at most so far apart.
testing::AssertionResult alike(const Answers& a, const Answers& b, double apart) {
  if (a.texts.size() != b.texts.size() || a.texts.size() != 10) {
    return testing::AssertionFailure() << a.texts.size() << " and " << b.texts.size() << " answers";
  }
  for (std::size_t i = 0; i < a.texts.size(); ++i) {
    const std::vector<ScoredToken>&x = a.texts[i].tokens, &y = b.texts[i].tokens;
    if (x.size() != y.size() || x.size() != 12) {
      return testing::AssertionFailure() << "answer " << i << ": " << x.size() << " and " << y.size() << " tokens";
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      if (x[t].id != y[t].id || !(std::abs(x[t].log_probability - y[t].log_probability) <= apart)) {
        return testing::AssertionFailure()
               << "answer " << i << ", token " << t << ": " << x[t].id << " with " << x[t].log_probability << ", "
               << y[t].id << " with " << y[t].log_probability;
      }
    }
  }
  return testing::AssertionSuccess();
}

struct Layout {
  std::string name, tables;
  int ranks;
  double apart;  // from one rank, in fp32
};

constexpr double rounding = 1e-4;

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"data2_shards_of_weights", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n", 2, 0},
      {"weights_on_the_disk", "[plugins.offload]\nweights = \"nvme\"\nstates = \"nvme\"\n", 1, 0},
      {"pipeline2", "[plugins.pipeline]\nsize = 2\n", 2, 0},
      {"pipeline2_in_chunks", "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n", 2, 0},
      {"tensor2", "[plugins.tensor]\nsize = 2\n", 2, rounding},
      {"tensor2_cut_rows", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n", 2, rounding},
      {"pipeline2_data2_tensor2",
       "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n"
       "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n",
       8, rounding}};
  return all;
}

const std::vector<Layout>& layouts_of_experts() {
  static const std::vector<Layout> all = {
      {"expert2", "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n", 2, 0},
      {"expert2_computed_in_the_host",
       "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n[plugins.offload]\nweights = \"host\"\n"
       "states = \"host\"\nexpert_weights = \"after_gate\"\nhost_rows = 1\n",
       2, 0},
      {"expert2_in_tensor2", "[plugins.tensor]\nsize = 2\nexperts = \"fold\"\n[plugins.expert]\nsize = 2\n", 2,
       rounding},
      {"pipeline2_expert2_tensor2",
       "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\n[plugins.tensor]\nsize = 2\n"
       "[plugins.expert]\nsize = 2\n",
       8, rounding}};
  return all;
}

struct Case {
  std::string model;
  std::vector<std::string> overrides;
  Layout layout;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << " " << c.layout.name;
}

class OfLayouts : public testing::TestWithParam<Case> {};

TEST_P(OfLayouts, RanksAnswerAsOneDoes) {
  const Case& c = GetParam();
  const Folder folder;
  GenerateOptions options = folder.options(c.model);
  options.overrides = c.overrides;
  const Answers one = answers_of(options);
  options.layout = folder.write("layout.toml", c.layout.tables);
  std::vector<Answers> found;
  for (const std::int64_t batch : {1, 8}) {
    options.batch = batch;
    found.push_back(answers_of(options));
    const Verification& v = found.back().generated.verification;
    EXPECT_EQ(found.back().generated.ranks, c.layout.ranks);
    EXPECT_TRUE(v.equal()) << v.equal_tokens << " of " << v.tokens << ", " << v.equal_choices << " of " << v.choices;
    EXPECT_EQ(v.tokens, one.generated.verification.tokens);
    EXPECT_EQ(v.choices, one.generated.verification.choices);
    EXPECT_TRUE(alike(found.back(), one, c.layout.apart)) << "batch " << batch;
  }
  EXPECT_TRUE(alike(found[0], found[1], 0));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string model :
       {"mistral", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "glm4_moe", "gpt_oss"}) {
    const bool dense = model == "mistral" || model == "qwen3";
    for (const Layout& layout : layouts()) {
      all.push_back({model, {}, layout});
    }
    for (const Layout& layout : layouts_of_experts()) {
      if (!dense) {
        all.push_back({model, {}, layout});
      }
    }
  }
  // A norm over all heads is no matter for axes that leave heads together.
  all.push_back({"olmoe", {}, layouts()[0]});
  all.push_back({"olmoe", {}, layouts()[1]});
  all.push_back({"olmoe", {}, layouts()[2]});
  all.push_back({"olmoe", {}, layouts_of_experts()[0]});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, OfLayouts, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.model + "_" + one.param.layout.name; });

// In bf16 the bits of one rank too, where no sum changes its order.
TEST(GenerateLayouts, Bf16AsOneRank) {
  const Folder folder;
  GenerateOptions options = folder.options("mixtral");
  options.overrides = {"run.dtype=\"bf16\""};
  const Answers one = answers_of(options);
  options.layout = folder.write("layout.toml",
                                "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n"
                                "[plugins.expert]\nsize = 2\n");
  const Answers four = answers_of(options);
  EXPECT_TRUE(four.generated.verification.equal());
  EXPECT_TRUE(alike(four, one, 0));
}

// A reader who goes away, and one who fails: only rank 0 knows, and all of them end.
TEST(GenerateLayouts, AllRanksEndWithTheReader) {
  const Folder folder;
  GenerateOptions options = folder.options("mixtral");
  options.layout = folder.write("layout.toml", layouts_of_experts().back().tables);
  options.verify = false;
  options.batch = 1;
  options.max_tokens = 3;
  int complete = 0;
  const Generated found = generate(options, keys_of_plugin, kinds_of_plugin, {}, [&](const GeneratedText&) {
    ++complete;
    return complete < 4;
  });
  EXPECT_EQ(complete, 4);
  EXPECT_EQ(found.tokens, 12);
  try {
    generate(options, keys_of_plugin, kinds_of_plugin, {},
             [](const GeneratedText&) -> bool { throw Error("the disk is full"); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the disk is full"));
  }
}

TEST(GenerateLayouts, RefusesWhatCannotAnswer) {
  const Folder folder;
  const auto refusal = [&](const std::string& model, const std::string& tables) -> std::string {
    GenerateOptions options = folder.options(model);
    options.layout = tables == "run" ? tables : folder.write("layout.toml", tables);
    try {
      generate(options, keys_of_plugin, kinds_of_plugin, {}, [](const GeneratedText&) { return true; });
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* how : {"ring", "ulysses"}) {
    EXPECT_THAT(refusal("mixtral", fmt::format("[plugins.sequence]\nsize = 2\nmethod = \"{}\"\n", how)),
                HasSubstr("axis 'sequence' divides the positions"));
  }
  EXPECT_THAT(refusal("mixtral", "[plugins.tensor]\nsize = 3\n"), HasSubstr("change [plugins.tensor] size"));
  EXPECT_THAT(refusal("olmoe", "[plugins.tensor]\nsize = 2\n"), HasSubstr("model.qk_norm_over"));
  EXPECT_THAT(refusal("llama", "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n"), HasSubstr("no experts"));
  EXPECT_THAT(refusal("mixtral", "[plugins.data]\nsize = 65\n"), HasSubstr("65 ranks"));
  EXPECT_THAT(refusal("mixtral", "[run]\nseed = 3\n"), HasSubstr("no [plugins] table"));
  EXPECT_THAT(refusal("mixtral", "run"), HasSubstr("no [plugins] table"));
  EXPECT_THAT(refusal("mixtral", fmt::format("[plugins.local_sgd]\npath = \"{}\"\nsize = 2\nevery = 2\n",
                                             paths::out_of_tree("local_sgd"))),
              HasSubstr("2 models apart from each other"));
}

}  // namespace
}  // namespace orthant::generate_layouts_test
