// Files that are cut, flipped, endless or no files at all: a clear error, never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/print.h"
#include "tests/config/fake_plugins.h"
#include "tests/config/temporary_folder.h"

namespace orthant::hostile_test {
namespace {

using testing::HasSubstr;

const std::string valid = R"(# every kind of value
[run]
directory = "häßlich \u00e9"   # a comment
seed = 0x1F
steps = 1_000
[data]
source = 'synthetic'
separator = """
two
lines"""
[model]
tie_embeddings = true
dropout = 1e-1
[optimizer]
betas = [0.9, 0.95]
[plugins.data]
size = 4
[plugins]
expert = { size = 2, dispatch = "all_to_all" }
)";

class Hostile : public testing::Test {
 protected:
  // The message, or "" when it was accepted. Anything but a ConfigError fails the test.
  std::string load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load_file(folder_.write("main.toml", text), overrides);
  }
  std::string load_file(const std::string& file, const std::vector<std::string>& overrides = {}) {
    try {
      load_config(file, overrides, fake_plugin_keys);
      return "";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("error"));
      return error.what();
    }
  }
  TemporaryFolder folder_;
};

TEST_F(Hostile, AFileCutAnywhere) {
  ASSERT_EQ(load(valid), "");
  for (std::size_t bytes = 0; bytes < valid.size(); ++bytes) {
    load(valid.substr(0, bytes));
  }
  EXPECT_NE(load(valid.substr(0, valid.find("'synthetic'") + 3)), "");
}

TEST_F(Hostile, AnOverrideCutAnywhere) {
  const std::string override = "plugins.expert = { size = 2, dispatch = \"all_to_all\" }";
  for (std::size_t bytes = 0; bytes < override.size(); ++bytes) {
    load("[data]\nsource = \"synthetic\"\n", {override.substr(0, bytes)});
  }
}

TEST_F(Hostile, BytesReplacedAnywhere) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string text = valid;
    for (int change = 0; change < 3; ++change) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    load(text);
  }
}

TEST_F(Hostile, RandomBytes) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::string text(random() % 200, '\0');
    for (char& c : text) {
      c = "abe.=[]{}\"'#\n\t ,0123-\\_\xc3\xa9"[random() % 25];
    }
    load(text);
    load("[data]\nsource = \"synthetic\"\n", {text});
  }
}

TEST_F(Hostile, DeepNesting) {
  const auto repeated = [](const std::string& unit, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) {
      text += unit;
    }
    return text;
  };
  EXPECT_THAT(load("a" + repeated(".a", 400000) + " = 1\n"), HasSubstr("dotted key of more than 16 parts"));
  EXPECT_THAT(load("[a" + repeated(".a", 400000) + "]\n"), HasSubstr("dotted key of more than 16 parts"));
  EXPECT_THAT(load("\"a\"" + repeated(".\"a\"", 100000) + " = 1\n"), HasSubstr("dotted key of more than 16 parts"));
  EXPECT_THAT(load("a" + repeated(" . 'a'", 100000) + " = 1\n"), HasSubstr("dotted key of more than 16 parts"));
  // Quotes that belong to the text before the end of a multi-line string must not hide what follows.
  EXPECT_THAT(load("x = { y = \"\"\"t\"\"\"\", a" + repeated(".a", 400000) + " = 1 }\n"),
              HasSubstr("dotted key of more than 16 parts"));
  EXPECT_NE(load("[run]\nname = " + repeated("[", 500000)), "");
  EXPECT_NE(load("[run]\nname = " + repeated("{a=", 300000)), "");
  EXPECT_THAT(load("[data]\nsource = \"synthetic\"\n", {"a" + repeated(".a", 100000) + "=1"}),
              HasSubstr("dotted key of more than 16 parts"));
}

TEST_F(Hostile, DotsInTextAndCommentsAreNoKeys) {
  const std::string dots(100, '.');
  EXPECT_EQ(load("# " + dots + "\n[data]\nsource = \"synthetic\" # it's " + dots + "\nseparator = \"" + dots + "\\\"" +
                 dots + "\"\n[plugins.needy]\nmodel = '''\n" + dots + "\n'" + dots + "'''\n"),
            "");
}

// Before each of these the TOML library relies on what is not so: undefined behaviour, or an assertion where those are
// on.
TEST_F(Hostile, CharactersWhereNoneMayStand) {
  for (const char* text : {"\u03da", "\u03da = 1", "a\u03da = 1", "[run]\nsteps = \u03da", "[\u03da]", "\u00e9 = 1"}) {
    EXPECT_THAT(load(text), HasSubstr("a character outside of ASCII, in no string and no comment")) << text;
  }
  EXPECT_THAT(load("[ = 1]"), HasSubstr("not valid TOML"));
  EXPECT_THAT(load("[[ = 1]]"), HasSubstr("not valid TOML"));
  EXPECT_EQ(load("\xEF\xBB\xBF# \u03da\n[data]\nsource = \"synthetic\" # \u03da\n[run]\n'name' = \"a\"\n"), "");
  EXPECT_EQ(load("[data]\nsource = \"synthetic\"\npath = [\"\u03da\", '\u03da', \"\"\"\u03da\n\u03da\"\"\"]\n"), "");
}

TEST_F(Hostile, LargeFiles) {
  EXPECT_THAT(load(std::string((1 << 20) + 1, '\n')), HasSubstr("is larger than 1 MiB"));
  EXPECT_THAT(load(std::string(1 << 20, '\n')), HasSubstr("needs files to read"));  // read, and then judged
  EXPECT_NE(load(std::string(1 << 20, 'a')), "");
  EXPECT_NE(load("[run]\n\"" + std::string(1000000, 'k') + "\" = 1\n"), "");
  std::string many = "[run]\n";
  for (int i = 0; i < 50000; ++i) {
    many += "k" + std::to_string(i) + " = 1\n";
  }
  const std::string message = load(many);
  EXPECT_THAT(message, HasSubstr("more\n"));
  EXPECT_LT(message.size(), 50000u);
  std::string plugins;
  for (int i = 0; i < 5000; ++i) {
    plugins += "[plugins.p" + std::to_string(i) + "]\n";
  }
  EXPECT_THAT(load(plugins), HasSubstr("error"));
}

TEST_F(Hostile, ExtendsThatGrowWithoutEnd) {
  for (int i = 0; i < 40; ++i) {  // 2^40 readings if nobody counted
    const std::string next = "\"f" + std::to_string(i + 1) + ".toml\"";
    folder_.write("f" + std::to_string(i) + ".toml", "extends = [" + next + ", " + next + "]\n");
  }
  folder_.write("f40.toml", "");
  EXPECT_THAT(load_file(folder_.path("f0.toml")), HasSubstr("more than 64 files are extended"));
}

TEST_F(Hostile, NoFilesAtAll) {
  EXPECT_THAT(load_file(folder_.path("none.toml")), HasSubstr("none.toml: there is no such file"));
  EXPECT_THAT(load_file(folder_.path("")), HasSubstr("is a directory"));
  EXPECT_THAT(load_file("/dev/zero"), HasSubstr("is not a regular file"));
  EXPECT_THAT(load_file(""), HasSubstr("there is no such file"));
  EXPECT_NE(load_file(std::string(100000, 'x')), "");
  EXPECT_NE(load_file("main.toml/inside"), "");
  ASSERT_EQ(mkfifo(folder_.path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(load_file(folder_.path("fifo")), HasSubstr("is not a regular file"));
  EXPECT_THAT(load("extends = \"fifo\"\n"), HasSubstr("main.toml:1:11: "));
  EXPECT_THAT(load("extends = \"a\\u0000b\"\n"), HasSubstr("not a file name"));
  EXPECT_THAT(load("[data]\npath = \"a\\u0000b\"\n"), HasSubstr("not a file name"));
  EXPECT_THAT(load("[data]\npath = \"" + std::string(3000, 'x') + "\"\n"), HasSubstr("[data] path: "));
  EXPECT_THAT(load("[data]\npath = \"fifo\"\n"), HasSubstr("is not a regular file"));
}

TEST_F(Hostile, IntegersAtTheirLimits) {
  EXPECT_NE(load("[run]\nsteps = 9223372036854775807\n"), "");
  EXPECT_NE(load("[run]\nsteps = -9223372036854775808\n"), "");
  EXPECT_NE(load("[run]\nsteps = 9223372036854775808\n"), "");
  for (const char* key : {"model.d_model", "model.heads", "model.kv_heads", "model.layers", "batch.sequences",
                          "batch.micro_batch", "data.sequence_length", "moe.group_tokens", "moe.every", "moe.top_k",
                          "optimizer.warmup_steps", "optimizer.decay_steps", "run.log_every"}) {
    for (const char* value : {"0", "1", "-1", "9223372036854775807", "-9223372036854775808", "65536", "16777216"}) {
      load("[data]\nsource = \"synthetic\"\n[moe]\nexperts = 2\n", {std::string(key) + "=" + value});
    }
  }
}

}  // namespace
}  // namespace orthant::hostile_test
