// What is printed: the resolved configuration, the schema, and the reference tables in the documentation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "apps/config/keys_text.h"
#include "core/config/print.h"
#include "core/config/registry.h"
#include "core/config/value_text.h"
#include "tests/config/fake_plugins.h"
#include "tests/config/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::print_test {
namespace {

using testing::HasSubstr;

// Values and structure, without the places they come from.
std::string values(const Config& config) {
  std::string text;
  const auto add = [&](const Table& table) {
    text += "[" + table.path() + "]\n";
    for (const auto& [key, entry] : table.entries()) {
      text += key + " " + std::to_string(entry.value.index()) + " " + toml_text(entry.value) + "\n";
    }
  };
  for (const Table& table : config.tables) {
    add(table);
  }
  for (const PluginRequest& plugin : config.plugins) {
    add(plugin.table);
    text += "path " + plugin.path + "\n";
  }
  return text;
}

TEST(Resolved, LoadsBackToTheSameConfiguration) {
  TemporaryFolder folder;
  folder.write("text \"one\".txt", std::string(1000, 'x'));
  const std::string file = folder.write("main.toml", R"(
[plugins.needy]
path = "lib/needy.so"
model = "line\nquote \" back\\slash tab\t bell\u0007 é"
sizes = [2, 3]
scale = 0.1
on = true
[plugins.data]
size = 4
[run]
name = "again"
seed = 9007199254740993
[data]
path = ['text "one".txt']
separator = "\u0001 \r\n"
[moe]
experts = 4
router = "switch"
capacity_factor = 1.25
[optimizer]
lr = 3.0000000000000004e-4
eps = 1e-30
betas = [0.1, 0.30000000000000004]
)");
  const Config config = load_config(file, {"plugins.expert.size=2", "model.heads=2"}, fake_plugin_keys);
  TemporaryFolder other;  // from another folder, since paths are absolute
  const Config again = load_config(other.write("resolved.toml", resolved_toml(config)), {}, fake_plugin_keys);
  EXPECT_EQ(values(again), values(config));
  EXPECT_EQ(again.settings.run.seed, 9007199254740993u);
  EXPECT_EQ(again.settings.optimizer.lr, 3.0000000000000004e-4);
  EXPECT_EQ(again.settings.data.path, config.settings.data.path);
  EXPECT_EQ(again.settings.moe.top_k, 1);
  EXPECT_EQ(again.plugins.at(0).name, "needy");
  EXPECT_EQ(again.plugins.at(0).table.text("model"), config.plugins.at(0).table.text("model"));
  const Config third = load_config(other.write("third.toml", resolved_toml(again)), {}, fake_plugin_keys);
  EXPECT_EQ(values(third), values(again));
}

TEST(Resolved, EveryValueSaysWhereItComesFrom) {
  TemporaryFolder folder;
  const std::string file = folder.write("main.toml", "[data]\nsource = \"synthetic\"\n[plugins.data]\nsize = 4\n");
  const std::string text = resolved_toml(load_config(file, {"run.steps=9"}, fake_plugin_keys));
  EXPECT_THAT(text, HasSubstr("# " + file + ":2:10\n"));
  EXPECT_THAT(text, HasSubstr("steps = 9                                        # --set:1:11\n"));
  EXPECT_THAT(text, HasSubstr("zero = 0                                         # default\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.empty() || line[0] == '[' || line.find(" # ") != std::string::npos) << line;
  }
}

// Nobody has declared the keys of a plugin that was not asked.
TEST(Resolved, KeysAreWrittenAsTheyWere) {
  TemporaryFolder folder;
  const std::string file =
      folder.write("main.toml", "[data]\nsource = \"synthetic\"\n[plugins.foreign]\n\"a.b\" = 3\n\"c d\" = true\n");
  const auto nobody = [](const PluginRequest&) -> std::optional<std::vector<KeySpec>> { return std::nullopt; };
  const Config config = load_config(file, {}, nobody);
  EXPECT_THAT(resolved_toml(config), HasSubstr("\"a.b\" = 3"));
  const Config again = load_config(folder.write("again.toml", resolved_toml(config)), {}, nobody);
  EXPECT_EQ(values(again), values(config));
  EXPECT_EQ(again.plugins.at(0).table.integer("a.b"), 3);
}

TEST(Resolved, AFileNameCannotEndTheComment) {
  TemporaryFolder folder;
  const std::string file = folder.write("a\nb = 1 #.toml", "[data]\nsource = \"synthetic\"\n");
  const std::string text = resolved_toml(load_config(file, {}, fake_plugin_keys));
  EXPECT_NO_THROW(load_config(folder.write("again.toml", text), {}, fake_plugin_keys));
}

TEST(Schema, HoldsEveryKeyWithItsTypeAndBounds) {
  PluginRequest data;
  data.name = "data";
  const auto schema = nlohmann::json::parse(schema_json({{"data", fake_plugin_keys(data)}}));
  EXPECT_EQ(schema["additionalProperties"], false);
  for (const CoreKey& key : core_keys()) {
    const auto& declared = schema["properties"][key.table]["properties"][key.spec.name];
    ASSERT_TRUE(declared.is_object()) << key.table << "." << key.spec.name;
    EXPECT_EQ(declared["description"], key.spec.help);
  }
  const auto& properties = schema["properties"];
  EXPECT_EQ(properties["run"]["properties"]["steps"]["type"], "integer");
  EXPECT_EQ(properties["run"]["properties"]["steps"]["minimum"], 1);
  EXPECT_EQ(properties["run"]["properties"]["dtype"]["enum"], nlohmann::json::array({"fp32", "bf16"}));
  EXPECT_EQ(properties["data"]["properties"]["path"]["anyOf"][0]["items"]["type"], "string");
  EXPECT_EQ(properties["data"]["properties"]["path"]["anyOf"][1]["type"], "string");
  EXPECT_EQ(properties["model"]["properties"]["dropout"]["default"], 0.0);
  const auto& plugin = properties["plugins"]["properties"]["data"];
  EXPECT_EQ(plugin["additionalProperties"], false);
  EXPECT_EQ(plugin["properties"]["zero"]["maximum"], 3);
  EXPECT_EQ(plugin["properties"]["path"]["type"], "string");
}

TEST(Registry, EveryKeyIsDeclaredOnceAndExplained) {
  std::set<std::string> seen;
  for (const CoreKey& key : core_keys()) {
    EXPECT_TRUE(seen.insert(key.table + "." + key.spec.name).second) << key.table << "." << key.spec.name;
    ASSERT_FALSE(key.spec.help.empty());
    EXPECT_EQ(key.spec.help.back(), '.') << key.spec.name;
  }
  EXPECT_GT(seen.size(), 50u);
}

TEST(Documentation, HasTheKeysOfTheRegistry) {
  std::ifstream in(paths::source("docs/reference/configuration.md"));
  std::ostringstream text;
  text << in.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("<!-- keys -->\n\n" + keys_markdown() + "\n<!-- end of keys -->"))
      << "put the output of `orthant config --keys` between the two marks of docs/reference/configuration.md";
}

}  // namespace
}  // namespace orthant::print_test
