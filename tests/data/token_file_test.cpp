// Token files: what was prepared comes back; what is damaged is refused or noticed, and nothing crashes.
#include "core/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <cstring>

#include "core/data/prepare.h"
#include "core/data/source.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"

namespace orthant::token_file_test {
namespace {

using testing::HasSubstr;

class TokenFiles : public testing::Test {
 protected:
  Settings settings(std::vector<std::string> paths) const {
    Settings s;
    s.data.source = "tokens";
    s.data.path = std::move(paths);
    s.data.sequence_length = 4;
    s.data.validation_fraction = 0;
    s.batch.sequences = 2;
    return s;
  }
  std::string error(const std::string& bytes) const {
    const std::string path = folder_.write("bad.tok", bytes);
    try {
      read_token_file(MappedFile(path));
    } catch (const ConfigError& e) {
      EXPECT_THAT(e.what(), HasSubstr("bad.tok"));
      return e.what();
    }
    return "no error";
  }
  std::string prepare(const std::string& text) const {
    const std::string path = (folder_.path() / "good.tok").string();
    prepare_byte_tokens({folder_.write("text", text)}, "--", path);
    return path;
  }
  TemporaryFolder folder_;
};

TEST_F(TokenFiles, ReplaceNoOtherFile) {
  const std::string text = folder_.write("text", "ab--cd"), empty = folder_.write("empty", "");
  for (const std::string& other : {text, folder_.write("notes", "mine")}) {
    const std::string before = read_file(other);
    EXPECT_THAT(test::error_of<ConfigError>([&] { prepare_byte_tokens({text}, "--", other); }),
                HasSubstr("is no token file"));
    EXPECT_THAT(test::error_of<ConfigError>([&] {
                  prepare_tokens({.files = {text}, .text = {}, .tokenizer = load_tokenizer("bytes"), .output = other});
                }),
                HasSubstr("is no token file"));
    EXPECT_EQ(read_file(other), before);
  }
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(prepare_byte_tokens({text}, "--", empty).tokens, 6);
  }
}

TEST_F(TokenFiles, ArePreparedAsTheFormatSays) {
  const std::string file = read_file(prepare("ab--cde\xff"));
  ASSERT_EQ(file.size(), 64u + 2u * 16u + 8u * 2u);
  EXPECT_EQ(file.substr(0, 16), std::string("ORTHTOKN\x01\0\0\0\x02\0\0\0", 16));
  const auto number = [&](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, file.data() + at, 8);
    return value;
  };
  EXPECT_EQ(number(16), 256u);  // vocabulary
  EXPECT_EQ(number(24), 8u);    // tokens
  EXPECT_EQ(number(32), 2u);    // documents: [0, 2) and [4, 8)
  EXPECT_EQ(number(64), 0u);
  EXPECT_EQ(number(72), 2u);
  EXPECT_EQ(number(80), 4u);
  EXPECT_EQ(number(88), 8u);
  EXPECT_EQ(file.substr(96), std::string("a\0b\0-\0-\0c\0d\0e\0\xff\0", 16));
}

TEST_F(TokenFiles, GiveTheSameBatchesAsTheirText) {
  const std::string text = "some words--and others--to be read--again and again";
  Settings tokens = settings({prepare(text)}), bytes = tokens;
  bytes.data.source = "text";
  bytes.data.path = {folder_.write("text", text)};
  for (const Documents documents : {Documents::stream, Documents::packed, Documents::separate}) {
    tokens.data.documents = bytes.data.documents = documents;
    bytes.data.separator = "--";
    const HostBatch a = make_batch_source(tokens)->train(3, 0, 2), b = make_batch_source(bytes)->train(3, 0, 2);
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.label, b.label);
    EXPECT_EQ(a.first, b.first);
  }
  tokens.model.vocab_size = 100;
  EXPECT_THROW(make_batch_source(tokens), ConfigError);
}

TEST_F(TokenFiles, EveryCutAndEveryFlipIsRefused) {
  const std::string good = read_file(prepare("ab--cdefg--h"));
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_NE(error(good.substr(0, n)), "no error") << "cut to " << n << " bytes";
  }
  EXPECT_NE(error(good + '\0'), "no error");
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const unsigned flip : {0x01u, 0x80u}) {
      std::string bad = good;
      bad[i] = static_cast<char>(static_cast<unsigned char>(bad[i]) ^ flip);
      EXPECT_NE(error(bad), "no error") << "flipped at " << i;
    }
  }
  EXPECT_EQ(error(good), "no error");
}

TEST_F(TokenFiles, AbsurdCountsAreRefusedByWhatTheyClaim) {
  const std::string good = read_file(prepare("ab--cdefg--h"));
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t bytes = 8) {
    std::string bad = good;
    std::memcpy(bad.data() + at, &value, bytes);
    return error(bad);
  };
  EXPECT_THAT(error("ORTH"), HasSubstr("4 bytes are too few"));
  EXPECT_THAT(error(std::string(200, 'x')), HasSubstr("no token file"));
  EXPECT_THAT(with(8, 3, 4), HasSubstr("version 3"));
  EXPECT_THAT(with(12, 3, 4), HasSubstr("3 bytes a token"));
  EXPECT_THAT(with(16, 0), HasSubstr("vocabulary of 0"));
  EXPECT_THAT(with(16, 70000), HasSubstr("vocabulary of 70000"));
  EXPECT_THAT(with(24, ~std::uint64_t{0}), HasSubstr("its header says 18446744073709551615"));
  EXPECT_THAT(with(32, ~std::uint64_t{0}), HasSubstr("18446744073709551615 documents"));
  EXPECT_THAT(with(32, std::uint64_t{1} << 60), HasSubstr("1152921504606846976 documents"));
}

// Large files are not read whole on opening: an id that is out of range is then found where it is read.
TEST_F(TokenFiles, AnIdBeyondTheVocabularyIsFoundWhenItIsRead) {
  const std::string path = prepare("ab--cdefg--h");
  Settings s = settings({path});
  const auto source = make_batch_source(s);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (int i = 0; i < 12; ++i) {
    file.seekp(64 + 3 * 16 + i * 2 + 1);
    file.put('\x01');
  }
  file.close();
  try {
    source->train(0, 0, 2);
    FAIL() << "ids of 256 and more were believed";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("token 3 is 301, expected ids below 256"));
  }
}

}  // namespace
}  // namespace orthant::token_file_test
