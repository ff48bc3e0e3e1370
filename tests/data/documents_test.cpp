// Packed and separate documents: every document whole and once an epoch, nothing across documents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/data/corpus.h"
#include "core/data/permutation.h"
#include "core/data/source.h"
#include "tests/data/temporary_folder.h"

namespace orthant::documents_test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t length = 16;

// Documents of 1 to 40 letters, each beginning with two letters of its own.
std::vector<std::string> make_documents(int count) {
  std::vector<std::string> documents;
  for (int i = 0; i < count; ++i) {
    std::string text = {static_cast<char>('a' + i % 26), static_cast<char>('a' + i / 26)};
    for (int k = 0; k < (i * 17) % 39; ++k) {
      text += static_cast<char>('A' + (i + k * k) % 26);
    }
    documents.push_back(i % 31 == 30 ? "!" : text);
  }
  return documents;
}

std::string join(const std::vector<std::string>& documents) {
  std::string text;
  for (const std::string& d : documents) {
    text += d + "--";
  }
  return text;
}

// The runs of valid tokens of equal `first`, with their labels, as text; a label of -1 is written '.'.
std::vector<std::pair<std::string, std::string>> runs_of(const HostBatch& b) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (std::size_t row = 0; row < static_cast<std::size_t>(b.sequences); ++row) {
    bool padding = false;
    for (std::size_t i = 0; i < static_cast<std::size_t>(b.positions); ++i) {
      const std::size_t at = row * static_cast<std::size_t>(b.positions) + i;
      if (b.valid[at] == 0) {
        padding = true;
        EXPECT_EQ(b.token[at], 0);
        EXPECT_EQ(b.label[at], -1);
        continue;
      }
      EXPECT_FALSE(padding) << "tokens after padding";
      if (b.first[at] == static_cast<int>(i)) {
        runs.emplace_back();
      }
      EXPECT_EQ(b.position[at], static_cast<int>(i) - b.first[at]);
      EXPECT_EQ(runs.back().first.size(), static_cast<std::size_t>(b.position[at]));
      runs.back().first += static_cast<char>(b.token[at]);
      runs.back().second += b.label[at] < 0 ? '.' : static_cast<char>(b.label[at]);
    }
  }
  return runs;
}

// What must come out of a document: pieces of up to `length` tokens, each label the next letter of the document.
std::vector<std::pair<std::string, std::string>> pieces_of(const std::string& document) {
  std::vector<std::pair<std::string, std::string>> pieces;
  const std::string labels = document.substr(1) + ".";
  for (std::size_t at = 0; at + 1 < document.size(); at += length) {
    pieces.emplace_back(document.substr(at, length), labels.substr(at, length));
  }
  return pieces;
}

class DocumentsTest : public testing::TestWithParam<Documents> {
 protected:
  Settings settings() {
    Settings s;
    s.data.path = {folder_.write("corpus", join(documents_))};
    s.data.sequence_length = length;
    s.data.separator = "--";
    s.data.documents = GetParam();
    s.data.validation_fraction = 0.2;
    s.data.validation_sequences = 1000;
    s.batch.sequences = 4;
    return s;
  }
  const std::vector<std::string> documents_ = make_documents(150);
  TemporaryFolder folder_;
};

TEST_P(DocumentsTest, AnEpochHoldsEveryTrainingPieceOnceAndValidationTheRest) {
  const Settings s = settings();
  const auto source = make_batch_source(s);
  std::multiset<std::pair<std::string, std::string>> train_expected, held_out_expected;
  const std::size_t cut = join(documents_).size() * 8 / 10;
  std::size_t begin = 0;
  for (const std::string& d : documents_) {
    for (const auto& piece : pieces_of(d)) {
      (begin < cut ? train_expected : held_out_expected).insert(piece);
    }
    begin += d.size() + 2;
  }
  const auto held_out = runs_of(source->validation(0, source->validation_sequences()));
  EXPECT_EQ((std::multiset<std::pair<std::string, std::string>>(held_out.begin(), held_out.end())), held_out_expected);

  // Two epochs, one sequence after another.
  std::multiset<std::pair<std::string, std::string>> seen;
  std::vector<std::pair<std::string, std::string>> first_epoch, second_epoch;
  std::int64_t number = 0;
  for (auto* epoch : {&first_epoch, &second_epoch}) {
    seen.clear();
    while (seen.size() < train_expected.size()) {
      const HostBatch b = source->train(number / 4, number % 4, 1);
      ++number;
      const auto runs = runs_of(b);
      if (GetParam() == Documents::separate) {
        EXPECT_EQ(runs.size(), 1u);
      }
      seen.insert(runs.begin(), runs.end());
      epoch->insert(epoch->end(), runs.begin(), runs.end());
    }
    EXPECT_EQ(seen, train_expected);
  }
  EXPECT_NE(first_epoch, second_epoch);
}

TEST_P(DocumentsTest, DrawsArePure) {
  const Settings s = settings();
  const HostBatch whole = make_batch_source(s)->train(1000, 0, 4);
  const HostBatch part = make_batch_source(s)->train(1000, 2, 2);
  EXPECT_TRUE(std::equal(part.token.begin(), part.token.end(), whole.token.begin() + 2 * length));
  EXPECT_EQ(part.index.front(), 2 * length);
  Settings other = s;
  other.run.seed = 2;
  EXPECT_NE(make_batch_source(other)->train(1000, 0, 4).token, whole.token);
  EXPECT_THROW(make_batch_source(s)->train(0, 4, 1), Error);
}

TEST_P(DocumentsTest, ErrorsSayWhatIsMissing) {
  Settings s = settings();
  const auto error = [&] {
    try {
      make_batch_source(s);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  s.data.path = {folder_.write("one", "only one document")};
  EXPECT_THAT(error(), HasSubstr("no document of two tokens or more begins in the last 0.2"));
  s.data.validation_fraction = 0;
  EXPECT_EQ(error(), "no error");
  s.data.path = {folder_.write("letters", "a--b--c--")};
  EXPECT_THAT(error(), HasSubstr("no document of two tokens or more to train on"));
  s.data.separator = "";
  EXPECT_THAT(error(), HasSubstr("data.separator"));
}

INSTANTIATE_TEST_SUITE_P(Both, DocumentsTest, testing::Values(Documents::packed, Documents::separate),
                         [](const auto& instance) {
                           return instance.param == Documents::packed ? "Packed" : "Separate";
                         });

TEST(Packed, SequencesAreFull) {
  TemporaryFolder folder;
  Settings s;
  s.data.path = {folder.write("corpus", join(make_documents(600)))};
  s.data.sequence_length = 64;
  s.data.separator = "--";
  s.data.documents = Documents::packed;
  s.batch.sequences = 100;
  const HostBatch b = make_batch_source(s)->train(0, 0, 100);
  // Documents have about 21 tokens: best fit leaves a few of 64 positions.
  EXPECT_GT(std::count(b.valid.begin(), b.valid.end(), 1), 6400 * 92 / 100);
}

TEST(Corpus, SplitsAtSeparatorsAndLeavesOutEmptyDocuments) {
  const std::string text = "\n\nab\n\nc\n\n\n\n\nde";
  const auto found = split_documents(std::as_bytes(std::span(text)), "\n\n");
  std::vector<std::string> documents;
  for (const Document& d : found) {
    documents.push_back(text.substr(static_cast<std::size_t>(d.begin), static_cast<std::size_t>(d.end - d.begin)));
  }
  EXPECT_EQ(documents, (std::vector<std::string>{"ab", "c", "\nde"}));
}

TEST(Permutation, IsOneAndDependsOnItsKey) {
  for (const std::uint64_t size : {1u, 2u, 3u, 16u, 17u, 1000u}) {
    std::vector<std::uint64_t> order, again;
    const Permutation p({7, Purpose::data_order, 1, 0}, size), q({7, Purpose::data_order, 1, 1}, size);
    for (std::uint64_t i = 0; i < size; ++i) {
      order.push_back(p(i));
      again.push_back(q(i));
    }
    if (size > 16) {
      EXPECT_NE(order, again);
    }
    std::sort(order.begin(), order.end());
    for (std::uint64_t i = 0; i < size; ++i) {
      EXPECT_EQ(order[i], i);
    }
  }
}

// Over many keys each element comes first equally often: chi-square with 9 degrees of freedom, 99.9 % below 27.9.
TEST(Permutation, IsUniformInItsFirstPlace) {
  std::array<int, 10> counts{};
  for (std::uint32_t epoch = 0; epoch < 5000; ++epoch) {
    ++counts[Permutation({7, Purpose::data_order, 1, epoch}, 10)(0)];
  }
  double chi_square = 0;
  for (const int c : counts) {
    chi_square += (c - 500.0) * (c - 500.0) / 500.0;
  }
  EXPECT_LT(chi_square, 27.9);
}

}  // namespace
}  // namespace orthant::documents_test
