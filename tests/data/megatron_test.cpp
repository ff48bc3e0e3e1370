// Megatron's .bin and .idx, written here byte by byte by its description.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include "core/data/corpus.h"
#include "core/data/megatron_file.h"
#include "core/data/source.h"
#include "core/data/token_file.h"
#include "tests/data/temporary_folder.h"

namespace orthant::megatron_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string little(std::int64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
  }
  return text;
}

struct Set {
  int code = 8;
  int width = 2;
  std::vector<std::vector<std::int64_t>> sequences = {{5, 6, 7}, {8}, {}, {9, 10, 11, 12}};
  std::vector<std::int64_t> documents = {0, 2, 3, 4};
  std::int64_t version = 1;
  std::string magic = std::string("MMIDIDX\0\0", 9);

  std::string bin() const {
    std::string bytes;
    for (const auto& sequence : sequences) {
      for (const std::int64_t id : sequence) {
        bytes += little(id, width);
      }
    }
    return bytes;
  }
  std::string idx() const {
    std::string bytes = magic + little(version, 8) + little(code, 1) +
                        little(static_cast<std::int64_t>(sequences.size()), 8) +
                        little(static_cast<std::int64_t>(documents.size()), 8);
    std::int64_t place = 0;
    std::string places;
    for (const auto& sequence : sequences) {
      bytes += little(static_cast<std::int64_t>(sequence.size()), 4);
      places += little(place, 8);
      place += static_cast<std::int64_t>(sequence.size()) * width;
    }
    bytes += places;
    for (const std::int64_t first : documents) {
      bytes += little(first, 8);
    }
    return bytes;
  }
};

class Megatron : public testing::Test {
 protected:
  std::string write(const Set& set) {
    folder_.write("m.idx", set.idx());
    return folder_.write("m.bin", set.bin());
  }
  std::string refusal(const std::string& idx) {
    folder_.write("m.idx", idx);
    try {
      Corpus::tokens({folder_.write("m.bin", Set().bin())}, 100);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;
};

TEST_F(Megatron, IdsAndDocumentsOfEveryIntegerType) {
  const std::pair<int, int> types[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
  for (const auto& [code, width] : types) {
    Set set;
    set.code = code;
    set.width = width;
    const std::string bin = write(set);
    for (const std::string& path : {bin, bin.substr(0, bin.size() - 3) + "idx"}) {
      const Corpus corpus = Corpus::tokens({path, path}, 100);
      std::vector<std::int32_t> ids(16);
      corpus.read(0, ids);
      EXPECT_THAT(ids, ElementsAre(5, 6, 7, 8, 9, 10, 11, 12, 5, 6, 7, 8, 9, 10, 11, 12));
      const std::vector<Document> documents = corpus.documents("");  // the one of an empty sequence is left out
      ASSERT_EQ(documents.size(), 4u);
      EXPECT_EQ(documents[1].begin, 4);
      EXPECT_EQ(documents[1].end, 8);
      EXPECT_EQ(documents[2].begin, 8);
    }
  }
}

TEST_F(Megatron, IdsOutsideTheVocabularyAreRefusedOnOpening) {
  for (const auto& [code, width, id] :
       {std::tuple{1, 1, 255}, {2, 1, -1}, {3, 2, -2}, {4, 4, -1}, {5, 8, -1}, {8, 2, 100}, {4, 4, 1 << 30}}) {
    Set set;
    set.code = code;
    set.width = width;
    set.sequences[3][1] = id;
    const std::string path = write(set);
    try {
      Corpus::tokens({path}, 100);
      FAIL() << id;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("token 5 is {}, model.vocab_size is 100", id)));
    }
  }
  Set wide;
  wide.sequences[0][0] = 65535;
  EXPECT_EQ(Corpus::tokens({write(wide)}, 65536).size(), 8);
}

TEST_F(Megatron, DamagedAndForeignFilesAreRefused) {
  const Set good;
  EXPECT_EQ(refusal(good.idx()), "no error");
  Set set;
  set.magic[0] = 'T';
  EXPECT_THAT(refusal(set.idx()), HasSubstr("does not begin with MMIDIDX"));
  set = {};
  set.version = 2;
  EXPECT_THAT(refusal(set.idx()), HasSubstr("version 2 is not known"));
  for (const auto& [code, words] : {std::pair{0, "code 0"}, {9, "code 9"}, {6, "f64 (code 6)"}, {7, "f32 (code 7)"}}) {
    set = {};
    set.code = code;
    EXPECT_THAT(refusal(set.idx()), HasSubstr(words));
  }
  set = {};
  set.code = 4;
  set.width = 4;
  EXPECT_THAT(refusal(set.idx()), HasSubstr("sequence 3 has 4 tokens, its ids take 16 bytes"));
  set = {};
  set.code = 1;
  set.width = 1;
  EXPECT_THAT(refusal(set.idx()), HasSubstr("8 tokens take 8 bytes, its .bin has 16"));
  set = {};
  set.documents = {0, 2, 1, 4};
  EXPECT_THAT(refusal(set.idx()), HasSubstr("document 1 is sequences 2 to 1"));
  set.documents = {0, 2, 3};
  EXPECT_THAT(refusal(set.idx()), HasSubstr("expected 0 to 4"));
  EXPECT_THAT(refusal(good.idx() + std::string(4, '\0')), HasSubstr("multimodal"));
  for (std::size_t size = 0; size < good.idx().size(); ++size) {
    EXPECT_NE(refusal(good.idx().substr(0, size)), "no error") << size;
  }
  std::string huge = good.idx();
  huge.replace(18, 8, std::string(8, '\xff'));
  EXPECT_THAT(refusal(huge), HasSubstr("do not fit"));
  std::string moved = good.idx();
  moved[34 + 16 + 8] = 7;  // the place of sequence 1
  EXPECT_THAT(refusal(moved), HasSubstr("sequence 1 begins at byte 7, expected 6"));
}

TEST_F(Megatron, IsASourceOfTokensWhoseVocabularyIsTheModels) {
  Settings s;
  s.data.source = "tokens";
  s.data.path = {write(Set())};
  s.data.documents = Documents::separate;
  s.data.sequence_length = 4;
  s.data.validation_fraction = 0;
  s.model.vocab_size = 13;
  s.batch.sequences = 2;
  const HostBatch batch = make_batch_source(s)->train(0, 0, 2);
  EXPECT_EQ(batch.token[0] + batch.token[4], 5 + 9);
  s.model.vocab_size = 12;
  EXPECT_THROW(make_batch_source(s), ConfigError);
  EXPECT_THROW(s.catalogue->get<Source>("tokens").vocabulary(s), ConfigError);
}

TEST_F(Megatron, BesideATokenFileItIsBlendedAndNotOneRow) {
  Settings s;
  s.data.source = "tokens";
  prepare_byte_tokens({folder_.write("text", "abcdefgh")}, "", folder_.path() / "own.tok");
  s.data.path = {write(Set()), (folder_.path() / "own.tok").string()};
  s.data.sequence_length = 4;
  s.data.validation_fraction = 0;
  s.model.vocab_size = 256;
  s.batch.sequences = 2;
  EXPECT_THROW(make_batch_source(s), ConfigError);
  s.data.blend = {1, 1};
  const HostBatch batch = make_batch_source(s)->train(0, 0, 2);
  EXPECT_LT(batch.token[0], 13);
  EXPECT_GE(batch.token[4], 'a');
  EXPECT_EQ(tokenizer_hash(s), 0u);
}

}  // namespace
}  // namespace orthant::megatron_test
