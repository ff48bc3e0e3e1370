// Text with a tokenizer: its tokens are the tokenizer's own, made once, and never half.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/config/config.h"
#include "core/data/source.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::tokenized_text_test {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAre;

class TokenizedText : public testing::Test {
 protected:
  TokenizedText() {
    const nlohmann::json wheels = nlohmann::json::parse(read_file(paths::source("tests/tokenizer/wheels.json")));
    const nlohmann::json& gpt2 = wheels["kinds"]["gpt2"]["tokenizer"];
    tokenizer_ = folder_.write("tokenizer.json", gpt2.dump());
    for (int i = 0; i < 40; ++i) {
      documents_.push_back(fmt::format("Document {} tells of the number {}, and then it ends.", i, i * i * 7919));
    }
  }
  Settings settings(Documents documents = Documents::packed) {
    Settings s;
    std::string text;
    for (const std::string& document : documents_) {
      text += document + "--";
    }
    s.run.directory = (folder_.path() / "runs").string();
    s.data.path = {folder_.write("text.txt", text)};
    s.data.tokenizer = tokenizer_;
    s.data.separator = "--";
    s.data.documents = documents;
    s.data.sequence_length = 64;
    s.data.validation_fraction = 0;
    s.model.vocab_size = load_tokenizer(tokenizer_)->vocabulary();
    s.batch.sequences = 4;
    return s;
  }
  // Names of the files in the cache that can be taken for tokens.
  std::vector<fs::path> cache() const {
    std::vector<fs::path> files;
    if (fs::exists(folder_.path() / "runs" / ".tokens")) {
      for (const auto& entry : fs::directory_iterator(folder_.path() / "runs" / ".tokens")) {
        if (entry.path().extension() == ".tok") {
          files.push_back(entry.path());
        }
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  std::string tokenizer_;
  std::vector<std::string> documents_;
  TemporaryFolder folder_;
};

TEST_F(TokenizedText, DocumentsAreThoseOfTheTokenizer) {
  Settings s = settings(Documents::separate);
  const auto tokenizer = load_tokenizer(tokenizer_);
  std::vector<std::vector<std::int32_t>> expected, found;
  for (const std::string& document : documents_) {
    expected.push_back(tokenizer->encode(document));
  }
  s.batch.sequences = 40;
  const HostBatch batch = make_batch_source(s)->train(0, 0, 40);
  for (std::size_t row = 0; row < 40; ++row) {
    std::vector<std::int32_t> ids;
    for (std::size_t i = row * 64; i < (row + 1) * 64 && batch.valid[i] != 0; ++i) {
      ids.push_back(batch.token[i]);
    }
    found.push_back(std::move(ids));
  }
  std::sort(expected.begin(), expected.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, expected);
}

TEST_F(TokenizedText, AStreamHasTheSeparatorsAsText) {
  Settings s = settings(Documents::stream);
  const std::vector<std::int32_t> all = load_tokenizer(tokenizer_)->encode(read_file(s.data.path[0]));
  const HostBatch batch = make_batch_source(s)->train(0, 0, 4);
  for (std::size_t row = 0; row < 4; ++row) {
    const auto begin = batch.token.begin() + static_cast<std::ptrdiff_t>(row * 64);
    const auto at = std::search(all.begin(), all.end(), begin, begin + 64);
    ASSERT_NE(at, all.end());
    EXPECT_EQ(batch.label[row * 64 + 63], *(at + 64));
  }
}

TEST_F(TokenizedText, TokensAreMadeOnceAndAgainWhereTextOrTokenizerOrFileChange) {
  Settings s = settings();
  const HostBatch first = make_batch_source(s)->train(0, 0, 4);
  ASSERT_EQ(cache().size(), 1u);
  const fs::path file = cache()[0];
  const auto made = fs::last_write_time(file);
  make_batch_source(s);
  EXPECT_EQ(fs::last_write_time(file), made);
  std::fstream(file, std::ios::binary | std::ios::in | std::ios::out).seekp(-3, std::ios::end).put('\x7f');
  EXPECT_EQ(make_batch_source(s)->train(0, 0, 4).token, first.token);  // a damaged file is made again
  EXPECT_EQ(cache().size(), 1u);
  fs::resize_file(file, fs::file_size(file) / 2);  // and so is half of one
  EXPECT_EQ(make_batch_source(s)->train(0, 0, 4).token, first.token);
  // What a killed process leaves under the names of its work is not taken.
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string bytes = read_file(file);
  fs::remove(file);
  for (const char* end : {"", ".partial", ".parts/000000.part", ".parts/job"}) {
    const std::string left = fmt::format("runs/.tokens/{}.{}{}", file.filename().string(), host, end);
    fs::create_directories((folder_.path() / left).parent_path());
    // A job is written whole or not at all; this one is another's.
    const bool job = left.ends_with("job");
    folder_.write(left, job ? "orthant shards 1\nof something else\n" : bytes.substr(0, bytes.size() / 2));
  }
  EXPECT_EQ(make_batch_source(s)->train(0, 0, 4).token, first.token);
  EXPECT_TRUE(read_file(file) == bytes);
  documents_.back() += " No more.";
  make_batch_source(settings());
  EXPECT_EQ(cache().size(), 2u);
  make_batch_source(settings(Documents::stream));
  EXPECT_EQ(cache().size(), 3u);
  nlohmann::json changed = nlohmann::json::parse(read_file(tokenizer_));
  changed["model"]["merges"].erase(0);
  folder_.write("tokenizer.json", changed.dump());
  make_batch_source(settings());
  EXPECT_EQ(cache().size(), 4u);
}

TEST_F(TokenizedText, ProcessesThatStartAtOnceAllFindTheSameTokens) {
  Settings s = settings();
  const std::vector<std::int32_t> expected = make_batch_source(s)->train(0, 0, 4).token;
  s.run.directory = (folder_.path() / "others").string();  // without the tokens that are there now
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        const HostBatch batch = make_batch_source(s)->train(0, 0, 4);
        _exit(batch.token == expected ? 0 : 1);
      } catch (...) {
        _exit(2);
      }
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(s.run.directory) / ".tokens")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, UnorderedElementsAre(EndsWith(".tok"), StartsWith("lock.")));
}

TEST_F(TokenizedText, ALookWritesNothingAndRefusesWhatItCan) {
  Settings s = settings();
  check_batch_source(s, false);
  EXPECT_FALSE(fs::exists(folder_.path() / "runs"));
  s.model.vocab_size -= 1;
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }),
              HasSubstr(fmt::format("{} is too small for '{}'", s.model.vocab_size, tokenizer_)));
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }),
              HasSubstr("write " + std::to_string(s.model.vocab_size + 1)));
  s = settings();
  s.data.sequence_length = 100000;
  s.data.documents = Documents::stream;
  check_batch_source(s, false);  // how many tokens the text has is not known yet
  EXPECT_THAT(test::error_of<ConfigError>([&] { make_batch_source(s); }), HasSubstr("a sequence of 100000 needs"));
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }),
              HasSubstr("a sequence of 100000 needs"));
  s = settings();
  s.data.tokenizer = (folder_.path() / "absent.json").string();
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }), HasSubstr("absent.json"));
  s = settings();
  s.data.path.push_back("/no/such/text");
  EXPECT_THAT(test::error_of<ConfigError>([&] { check_batch_source(s, false); }), HasSubstr("/no/such/text"));
}

TEST_F(TokenizedText, AConfigurationTakesItsVocabularyFromTheTokenizer) {
  settings();
  const std::int64_t vocabulary = load_tokenizer(tokenizer_)->vocabulary();
  const auto load = [&](const std::string& data, const std::string& size) {
    const std::string file = folder_.write("c.toml", fmt::format("[data]\n{}\n[model]\nvocab_size = {}\n", data, size));
    return load_config(file, {}, [](const PluginRequest&) { return std::vector<KeySpec>(); });
  };
  const Config config = load("path = \"text.txt\"\ntokenizer = \"tokenizer.json\"", "0");
  EXPECT_EQ(config.settings.model.vocab_size, vocabulary);
  EXPECT_EQ(std::get<std::int64_t>(config.table("model").entries().at("vocab_size").value), vocabulary);
  EXPECT_EQ(config.settings.data.tokenizer, tokenizer_);  // relative to the file that names it
  EXPECT_EQ(load("path = \"text.txt\"", "0").settings.model.vocab_size, 256);
  EXPECT_THAT(test::error_of<ConfigError>([&] { load("source = \"synthetic\"", "0"); }),
              HasSubstr("\"synthetic\" does not say"));
  EXPECT_THAT(test::error_of<ConfigError>([&] { load("path = \"text.txt\"\ntokenizer = \"gpt2\"", "0"); }),
              HasSubstr("c.toml:3:13"));
}

}  // namespace
}  // namespace orthant::tokenized_text_test
