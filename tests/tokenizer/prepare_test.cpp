// Prepared files: documents in order by any number of threads; what was finished before a kill is kept, what is damaged
// is not.
#include "core/data/prepare.h"
#include "plugins/tokenizer/published_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/temporary_folder.h"
#include "tests/support/paths.h"

namespace orthant::prepare_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Prepared : public testing::Test {
 protected:
  PrepareOptions options(std::vector<std::string> files, const std::string& out = "out.tok") const {
    return {.files = std::move(files),
            .text = {.separator = "--"},
            .tokenizer = load_tokenizer("bytes"),
            .output = folder_.path() / out,
            .shard_bytes = 10};
  }
  TemporaryFolder folder_;
};

TEST_F(Prepared, DocumentsOfTextAndOfJsonLinesStandInOrder) {
  PrepareOptions o = options(
      {folder_.write("a.txt", "ab--cde----f"),
       folder_.write("b.jsonl",
                     "{\"n\": {\"text\": \"no\"}, \"text\": \"x\\u00e9\"}\n\n{\"text\": \"\"}\r\n{\"text\": \"z\"}")});
  o.bos = 1;
  o.eos = 2;
  for (const int threads : {1, 4}) {
    o.threads = threads;
    const TokenFile file = prepare_tokens(o);
    const std::string bytes = read_file(o.output);
    std::string ids;
    for (std::size_t at = file.byte_offset; at < bytes.size(); at += 2) {
      ids += bytes[at];
    }
    EXPECT_EQ(ids,
              "\x01"
              "ab\x02\x01"
              "cde\x02\x01"
              "f\x02\x01"
              "x\xc3\xa9\x02\x01z\x02");
    ASSERT_EQ(file.documents.size(), 5u);
    EXPECT_EQ(file.documents[1].begin, 4);
    EXPECT_EQ(file.documents[1].end, 9);
    EXPECT_FALSE(fs::exists(folder_.path() / "out.tok.parts"));
  }
}

TEST_F(Prepared, FinishedShardsAreKeptAndDamagedOnesAreMadeAgain) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "document " + std::to_string(i) + "--";
  }
  const std::string good = folder_.write("good.txt", text);
  PrepareOptions o = options({good});
  int shards = 0;
  o.progress = [&](const PrepareProgress&) { require(++shards % 2 != 0, "killed, as it were"); };
  EXPECT_THROW(prepare_tokens(o), Error);
  const fs::path parts = folder_.path() / "out.tok.parts", first = parts / "000000.part",
                 second = parts / "000001.part";
  ASSERT_TRUE(fs::exists(first));
  EXPECT_FALSE(fs::exists(o.output));
  const auto before = fs::last_write_time(first);
  std::fstream(second, std::ios::binary | std::ios::in | std::ios::out).seekp(40).put('\x7f');
  const std::string damaged = read_file(second);
  EXPECT_THROW(prepare_tokens(o), Error);
  EXPECT_EQ(fs::last_write_time(first), before);
  EXPECT_NE(read_file(second), damaged);
  o.progress = nullptr;
  o.eos = 7;  // another job, with other tokens: nothing of the old one is taken
  prepare_tokens(o);
  PrepareOptions whole = options({good}, "whole.tok");
  whole.eos = 7;
  prepare_tokens(whole);
  EXPECT_EQ(read_file(o.output), read_file(folder_.path() / "whole.tok"));
}

TEST_F(Prepared, ARefusedTextLeavesNothingBehind) {
  const std::string good = folder_.write("good.txt", "ab--cd--ef--gh"), bad = folder_.write("bad.jsonl", "[1]");
  const PrepareOptions o = options({good, bad});
  EXPECT_THROW(prepare_tokens(o), ConfigError);
  EXPECT_FALSE(fs::exists(folder_.path() / "out.tok.parts"));
  EXPECT_FALSE(fs::exists(o.output));
}

TEST_F(Prepared, LinesThatAreNoTextAreRefusedByTheirNumber) {
  const auto error = [&](const std::string& lines) -> std::string {
    try {
      prepare_tokens(options({folder_.write("b.jsonl", lines)}));
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("{\"text\": \"a\"}\n{\"tex\": \"a\"}"),
              HasSubstr("line 2: expected a JSON object with a string under \"text\""));
  EXPECT_THAT(error("[1]"), HasSubstr("line 1: expected a JSON object"));
  EXPECT_THAT(error("{\"text\": \"a\""), HasSubstr("line 1"));
  EXPECT_THAT(error("{\"text\": \"\xff\"}"), HasSubstr("line 1"));
  EXPECT_THAT(error("{\"text\": \"\"}"), HasSubstr("no text"));
}

std::string error_of(const PrepareOptions& options) {
  try {
    prepare_tokens(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Prepared, AFolderOfSomebodyElseIsLeftAlone) {
  fs::create_directory(folder_.path() / "out.tok.parts");
  const std::string text = folder_.write("out.tok.parts/a.txt", "ab--cd");
  EXPECT_THAT(error_of(options({text})), HasSubstr("are not shards of a token file"));
  EXPECT_EQ(read_file(text), "ab--cd");
  folder_.write("out.tok.parts/job", "mine");
  EXPECT_THAT(error_of(options({text})), HasSubstr("are not shards of a token file"));
  EXPECT_EQ(read_file(folder_.path() / "out.tok.parts/job"), "mine");
  // What somebody puts beside shards stays.
  const std::string other = folder_.write("b.txt", "ab--cd");
  PrepareOptions killed = options({other}, "two.tok");
  killed.progress = [](const PrepareProgress&) { fail("killed, as it were"); };
  EXPECT_THAT(error_of(killed), HasSubstr("killed"));
  const std::string note = folder_.write("two.tok.parts/note.part.txt", "keep");
  prepare_tokens(options({other}, "two.tok"));
  EXPECT_EQ(read_file(note), "keep");
  EXPECT_FALSE(fs::exists(folder_.path() / "two.tok.parts/000000.part"));
  EXPECT_FALSE(fs::exists(folder_.path() / "two.tok.parts/job"));
  folder_.write("three.tok.parts", "a file");
  EXPECT_THAT(error_of(options({other}, "three.tok")), HasSubstr("is needed as a folder"));
}

TEST_F(Prepared, NothingIsLeftOfWhatCannotBeFinished) {
  const std::string text = folder_.write("a.txt", "ab--cd"),
                    blank = folder_.write("blank.jsonl", "{\"text\": \"\"}\n\t\n");
  EXPECT_THAT(error_of(options({blank})), HasSubstr("have no text"));
  EXPECT_FALSE(fs::exists(folder_.path() / "out.tok.parts"));
  fs::create_directory(folder_.path() / "folder");
  EXPECT_THAT(error_of(options({text}, "folder")),
              HasSubstr("'" + (folder_.path() / "folder").string() + "' is a folder"));
  EXPECT_THAT(error_of(options({text}, "none/out.tok")), HasSubstr("there is no folder"));
  EXPECT_FALSE(fs::exists(folder_.path() / "folder.parts"));
  EXPECT_THROW(prepare_byte_tokens({text}, "--", folder_.path() / "folder"), ConfigError);
  const fs::path out = folder_.path() / "fed.tok";
  EXPECT_THROW(write_token_file(out, {.vocabulary = 4}, [](const TokenBytes&) { throw Error("no tokens"); }), Error);
  EXPECT_FALSE(fs::exists(out.string() + ".partial"));
}

TEST_F(Prepared, TheHashIsTheTokenizers) {
  const nlohmann::json wheels = nlohmann::json::parse(read_file(paths::source("tests/tokenizer/wheels.json")));
  PrepareOptions o = options({folder_.write("a.txt", "some words--more words")});
  o.tokenizer = parse_tokenizer_json("t.json", wheels["kinds"]["gpt2"]["tokenizer"].dump());
  ASSERT_NE(o.tokenizer->hash(), 0u);
  EXPECT_EQ(prepare_tokens(o).tokenizer, o.tokenizer->hash());
  EXPECT_EQ(read_token_file(MappedFile(o.output)).tokenizer, o.tokenizer->hash());
}

TEST_F(Prepared, TheHeaderNamesTheTokenizer) {
  const std::string text = folder_.write("a.txt", "ab--cd");
  EXPECT_EQ(prepare_tokens(options({text})).tokenizer, 0u);
  TokenFile content{.vocabulary = 70000, .tokenizer = 77, .documents = {{0, 1}}};
  const fs::path path = folder_.path() / "two.tok";
  write_token_file(path, content, [](const TokenBytes& put) {
    const std::int32_t id = 69999;
    put(std::as_bytes(std::span(&id, 1)));
  });
  const TokenFile read = read_token_file(MappedFile(path));
  EXPECT_EQ(read.tokenizer, 77u);
  EXPECT_EQ(read.width, 4u);
  EXPECT_EQ(read_file(path)[8], 2);  // version
  content.tokenizer = 78;
  const fs::path other = folder_.path() / "other.tok";
  write_token_file(other, content, [](const TokenBytes& put) {
    const std::int32_t id = 1;
    put(std::as_bytes(std::span(&id, 1)));
  });
  EXPECT_THROW(Corpus::tokens({path.string(), other.string()}), ConfigError);
}

}  // namespace
}  // namespace orthant::prepare_test
