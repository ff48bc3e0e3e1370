// Every file of tests/config/bad is refused with exactly the text beside it (NAME.expected). A first line
// `# --set a=b --set c=d` gives overrides. In the expected text SOURCE stands for this directory, and {*} for words of
// the TOML library, which differ between its versions. ORTHANT_WRITE_EXPECTED=1 writes the files: read them after.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "tests/config/fake_plugins.h"
#include "tests/support/paths.h"

namespace orthant::bad_configurations_test {
namespace {

namespace fs = std::filesystem;

const fs::path folder = paths::source("tests/config/bad");

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> bad_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".toml") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> overrides_of(const std::string& text) {
  std::vector<std::string> overrides;
  const std::string mark = "--set ";
  const std::string line = text.substr(0, text.find('\n'));
  if (line.rfind("# " + mark, 0) != 0) {
    return overrides;
  }
  for (std::size_t at = line.find(mark); at != std::string::npos;) {
    const std::size_t next = line.find(" " + mark, at);
    const std::size_t begin = at + mark.size();
    overrides.push_back(line.substr(begin, next == std::string::npos ? next : next - begin));
    at = next == std::string::npos ? next : next + 1;
  }
  return overrides;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Whether `text` is `pattern`, whose {*} stand for anything within a line.
bool matches(const std::string& text, const std::string& pattern) {
  std::istringstream texts(text), patterns(pattern);
  std::string line, expected;
  while (std::getline(patterns, expected)) {
    if (!std::getline(texts, line)) {
      return false;
    }
    const std::size_t star = expected.find("{*}");
    const std::string tail = star == std::string::npos ? "" : expected.substr(star + 3);
    const bool same = star == std::string::npos
                          ? line == expected
                          : line.size() + 3 >= expected.size() && line.compare(0, star, expected, 0, star) == 0 &&
                                line.compare(line.size() - tail.size(), tail.size(), tail) == 0;
    if (!same) {
      return false;
    }
  }
  return !std::getline(texts, line);
}

class BadConfiguration : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    fs::current_path(folder);
  }
  void TearDown() override { fs::current_path(before_); }

 private:
  fs::path before_;
};

TEST_P(BadConfiguration, IsRefusedWithTheExpectedText) {
  const std::string file = GetParam() + ".toml";
  std::string message;
  try {
    load_config(file, overrides_of(read_all(file)), fake_plugin_keys);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_configuration);
    message = replaced(error.what(), fs::current_path().string(), "SOURCE");
  }
  ASSERT_FALSE(message.empty()) << file << " was accepted";
  const fs::path expected = GetParam() + ".expected";
  if (std::getenv("ORTHANT_WRITE_EXPECTED") != nullptr) {
    std::ofstream(expected) << message << "\n";
  }
  EXPECT_TRUE(matches(message + "\n", read_all(expected))) << "expected:\n"
                                                           << read_all(expected) << "\nfound:\n"
                                                           << message;
}

INSTANTIATE_TEST_SUITE_P(Corpus, BadConfiguration, testing::ValuesIn(bad_files()),
                         [](const auto& instance) { return instance.param; });

TEST(BadConfigurations, AreManyAndEachHasItsText) {
  EXPECT_GE(bad_files().size(), 40u);
  for (const std::string& name : bad_files()) {
    EXPECT_TRUE(fs::exists(folder / (name + ".expected"))) << name;
  }
}

}  // namespace
}  // namespace orthant::bad_configurations_test
