// Windows of a text: right bytes, right labels, a held-out part that training never sees, no dependence on batching.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <set>

#include "core/data/source.h"
#include "core/data/token_file.h"
#include "tests/data/temporary_folder.h"

namespace orthant::stream_test {
namespace {

using testing::HasSubstr;

// Bytes of which no 17 in a row occur twice.
std::string random_text(std::size_t size) {
  std::string text(size, '\0');
  std::uint32_t state = 1;
  for (char& byte : text) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return text;
}

class Stream : public testing::Test {
 protected:
  Settings settings(std::vector<std::string> paths) const {
    Settings s;
    s.data.path = std::move(paths);
    s.data.sequence_length = 16;
    s.batch.sequences = 8;
    s.data.validation_sequences = 4;
    return s;
  }
  std::string error(const Settings& s) const {
    try {
      make_batch_source(s);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }
  TemporaryFolder folder_;
};

TEST_F(Stream, WindowsAreRunsOfTheTextAndLabelsAreTheNextBytes) {
  const std::string text = random_text(1000);
  // Two files are one text: windows cross from one to the other.
  const auto source =
      make_batch_source(settings({folder_.write("a", text.substr(0, 300)), folder_.write("b", text.substr(300))}));
  EXPECT_EQ(source->vocabulary(), 256);
  const std::string train = text.substr(0, 900);
  std::set<std::size_t> places;
  for (int step = 0; step < 40; ++step) {
    const HostBatch b = source->train(step, 0, 8);
    ASSERT_EQ(b.token.size(), 8u * 16u);
    for (std::size_t row = 0; row < 8; ++row) {
      std::string window;
      for (std::size_t i = 0; i < 16; ++i) {
        const std::size_t at = row * 16 + i;
        window += static_cast<char>(b.token[at]);
        EXPECT_EQ(b.position[at], static_cast<int>(i));
        EXPECT_EQ(b.first[at], 0);
        EXPECT_EQ(b.valid[at], 1);
        EXPECT_EQ(b.index[at], static_cast<std::int64_t>(at));
        if (i > 0) {
          EXPECT_EQ(b.label[at - 1], b.token[at]);
        }
      }
      window += static_cast<char>(b.label[row * 16 + 15]);
      const std::size_t place = train.find(window);  // never reaches the held-out part
      ASSERT_NE(place, std::string::npos);
      places.insert(place);
    }
  }
  EXPECT_GT(places.size(), 250u);  // 320 draws of 884 places: about 269 distinct
  EXPECT_LT(*places.begin(), 30u);
  EXPECT_GT(*places.rbegin(), 850u);
}

TEST_F(Stream, DrawsArePureInSeedStepAndSequence) {
  const Settings s = settings({folder_.write("a", random_text(1000))});
  const auto source = make_batch_source(s);
  const HostBatch whole = source->train(5, 0, 8);
  const HostBatch part = make_batch_source(s)->train(5, 3, 2);
  EXPECT_TRUE(std::equal(part.token.begin(), part.token.end(), whole.token.begin() + 48));
  EXPECT_TRUE(std::equal(part.label.begin(), part.label.end(), whole.label.begin() + 48));
  EXPECT_EQ(part.index.front(), 48);
  EXPECT_NE(source->train(6, 0, 8).token, whole.token);
  Settings other = s;
  other.run.seed = 2;
  EXPECT_NE(make_batch_source(other)->train(5, 0, 8).token, whole.token);
  EXPECT_TRUE(source->train(5, 8, 0).token.empty());
  EXPECT_THROW(source->train(5, 7, 2), Error);
}

// Steps of a batch that grows cut the row of sequences of one that does not, elsewhere: windows, and epochs of
// documents.
TEST_F(Stream, ABatchThatGrowsCutsTheSameRow) {
  std::string text = random_text(2000);
  std::replace(text.begin(), text.end(), 'a', '\n');
  for (const Documents documents : {Documents::stream, Documents::packed}) {
    Settings plain = settings({folder_.write("a", text)});
    plain.data.documents = documents;
    plain.data.separator = "\n";
    Settings growing = plain;
    growing.batch.grow_after = {1, 3};
    growing.batch.grow_to = {16, 40};
    const auto row = make_batch_source(plain), cut = make_batch_source(growing);
    std::vector<std::int32_t> expected, found;
    for (int step = 0; step < 20; ++step) {
      const HostBatch b = row->train(step, 0, 8);
      expected.insert(expected.end(), b.token.begin(), b.token.end());
    }
    const std::int64_t sizes[] = {8, 16, 16, 40, 40, 40};  // 160 together
    for (int step = 0; step < 6; ++step) {
      for (std::int64_t part = 0; part < 2; ++part) {  // of two ranks
        const HostBatch b = cut->train(step, part * sizes[step] / 2, sizes[step] / 2);
        EXPECT_EQ(b.index.front(), part * sizes[step] / 2 * 16);
        found.insert(found.end(), b.token.begin(), b.token.end());
      }
      EXPECT_THROW(cut->train(step, sizes[step], 1), Error);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST_F(Stream, ValidationWindowsAreSpreadOverTheHeldOutPart) {
  const std::string text = random_text(1000);
  const auto source = make_batch_source(settings({folder_.write("a", text)}));
  ASSERT_EQ(source->validation_sequences(), 4);
  const HostBatch b = source->validation(0, 4);
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t i = 0; i < 16; ++i) {  // 99 predictions over 4 windows: one begins every 24 bytes
      EXPECT_EQ(b.token[row * 16 + i], static_cast<unsigned char>(text[900 + row * 24 + i]));
      EXPECT_EQ(b.label[row * 16 + i], static_cast<unsigned char>(text[900 + row * 24 + i + 1]));
    }
  }
}

TEST_F(Stream, AShortHeldOutPartIsReadWholeOnceAndPadded) {
  const std::string text = random_text(1000);
  Settings s = settings({folder_.write("a", text)});
  s.data.validation_sequences = 100;
  const auto source = make_batch_source(s);
  ASSERT_EQ(source->validation_sequences(), 7);  // 99 predictions
  const HostBatch b = source->validation(0, 7);
  std::size_t next = 901;
  for (std::size_t i = 0; i < b.label.size(); ++i) {
    if (b.valid[i] != 0) {
      EXPECT_EQ(b.label[i], static_cast<unsigned char>(text[next++]));
    } else {
      EXPECT_EQ(b.label[i], -1);
      EXPECT_EQ(b.token[i], 0);
    }
  }
  EXPECT_EQ(next, 1000u);
}

TEST_F(Stream, ErrorsSayWhatIsMissing) {
  Settings s = settings({(folder_.path() / "absent.txt").string()});
  EXPECT_THAT(error(s), HasSubstr("absent.txt': No such file"));
  s.data.path = {folder_.path().string()};
  EXPECT_THAT(error(s), HasSubstr("not a regular file"));
  s.data.path = {};
  EXPECT_THAT(error(s), HasSubstr("data.path"));
  s.data.path = {folder_.write("empty", "")};
  EXPECT_THAT(error(s), HasSubstr("empty' is empty"));
  s.data.path = {folder_.write("short", random_text(16))};
  EXPECT_THAT(error(s), HasSubstr("a sequence of 16 needs 17"));
  s.data.path = {folder_.write("medium", random_text(150))};
  EXPECT_THAT(error(s), HasSubstr("data.validation_fraction"));
  s.data.validation_fraction = 0;
  EXPECT_EQ(error(s), "no error");
  EXPECT_EQ(make_batch_source(s)->validation_sequences(), 0);
  s.model.vocab_size = 255;
  EXPECT_THAT(error(s), HasSubstr("model.vocab_size: 255 is too small"));
  s.model.vocab_size = 256;
  s.data.tokenizer = "gpt2";
  EXPECT_THAT(error(s), HasSubstr("the tokenizer 'gpt2' is not there"));
}

TEST_F(Stream, TheShortestTextThatFits) {
  Settings s = settings({folder_.write("a", random_text(17))});
  s.data.validation_fraction = 0;
  EXPECT_EQ(make_batch_source(s)->train(0, 0, 8).token[0], static_cast<unsigned char>(random_text(1)[0]));
}

TEST_F(Stream, FilesThatAreNoTextAreRefusedOrToldOf) {
  const std::string text = folder_.write("text", random_text(1000));
  const std::string tokens = (folder_.path() / "text.tok").string();
  prepare_byte_tokens({text}, "--", tokens);
  EXPECT_THAT(error(settings({text, tokens})), HasSubstr("text.tok' is a token file, no text; write data.source"));
  EXPECT_THAT(error(settings({folder_.write("a.idx", std::string("MMIDIDX\0\0", 9) + random_text(1000))})),
              HasSubstr("index of a token file of Megatron-LM"));
  const std::string model = folder_.write("a.model", std::string(300, 'm') + '\0' + std::string(700, 'm'));
  EXPECT_THAT(check_batch_source(settings({folder_.write("plain", std::string(1000, 'x'))}), false),
              testing::IsEmpty());
  EXPECT_THAT(check_batch_source(settings({model}), false),
              testing::ElementsAre(HasSubstr("a.model' seems to be no text: its byte 300 is zero")));
}

}  // namespace
}  // namespace orthant::stream_test
