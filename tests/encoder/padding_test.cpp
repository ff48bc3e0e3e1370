// What an encoder must not see or know: padding, and which rank a token lies on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "tests/encoder/texts.h"
#include "tests/support/parity.h"

namespace orthant::test::encoder_padding_test {
namespace {

// The same texts in longer sequences, with their masks: only padding is added.
class Wider final : public ChangedSource {
 public:
  // seen: padding belongs to the text's document, a planted mistake.
  Wider(const Settings& settings, std::int64_t wide, bool seen) : ChangedSource(settings), wide_(wide), seen_(seen) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    const HostBatch narrow = ChangedSource::train(step, first, count);
    HostBatch batch = narrow;
    batch.positions = wide_;
    const auto widen = [&](auto& to, const auto& from, auto padding) {
      to.clear();
      for (std::int64_t s = 0; s < count; ++s) {
        const auto begin = from.begin() + s * narrow.positions;
        to.insert(to.end(), begin, begin + narrow.positions);
        to.insert(to.end(), static_cast<std::size_t>(wide_ - narrow.positions), padding);
      }
    };
    widen(batch.token, narrow.token, 0);
    widen(batch.label, narrow.label, -1);
    widen(batch.position, narrow.position, 0);
    widen(batch.first, narrow.first, 0);
    widen(batch.valid, narrow.valid, std::uint8_t{0});
    batch.index.resize(batch.token.size());
    for (std::int64_t t = 0; t < count * wide_; ++t) {
      batch.index[static_cast<std::size_t>(t)] = first * wide_ + t;
      if (t % wide_ >= narrow.positions && !seen_) {
        batch.first[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t % wide_);  // a document of its own
      }
    }
    return batch;
  }

 private:
  std::int64_t wide_;
  bool seen_;
};

std::vector<double> losses(const Overrides& model, std::int64_t wide, bool seen) {
  const Config narrow = experiment(model, plugin_encoder);
  const Config config = experiment(joined(model, {fmt::format("data.sequence_length={}", wide)}), plugin_encoder);
  const Wider source(narrow.settings, wide, seen);
  OneRank rank(config, &source);
  std::vector<double> found;
  for (int step = 0; step < 3; ++step) {
    found.push_back(rank->trainer().step(step).loss);
  }
  return found;
}

TEST(Padding, IsSeenByNobody) {
  const Overrides model = joined(modern_encoder(), {"moe.experts=0"});
  const std::vector<double> narrow = losses(model, 12, false), wide = losses(model, 20, false);
  const std::vector<double> mistaken = losses(model, 20, true);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    EXPECT_NEAR(wide[i], narrow[i], 1e-6 * narrow[i]);
    EXPECT_GT(std::abs(mistaken[i] - narrow[i]), 1e-5 * narrow[i]);  // so that the test can fail
  }
}

// A mistake: masks by the place in a rank's share of the batch. Layouts then differ, and the comparison says so.
class ByRank final : public ChangedSource {
 public:
  using ChangedSource::ChangedSource;
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    HostBatch batch = ChangedSource::train(step, first, count);
    const HostBatch other = ChangedSource::train(step + 1, 0, count);
    for (std::size_t i = 0; i < batch.token.size(); ++i) {
      const bool chosen = other.label[i] >= 0;
      const std::int32_t itself = batch.label[i] >= 0 ? batch.label[i] : batch.token[i];
      batch.label[i] = chosen && itself < 256 ? itself : -1;
      batch.token[i] = chosen && itself < 256 ? 256 : itself;
    }
    return batch;
  }
};

TEST(Masks, ByRankWouldBeSeen) {
  const Config config = experiment(modern_encoder(), plugin_encoder);
  const auto of_layout = [&](const BatchSource& source) {
    return std::vector<HostBatch>{source.train(0, 0, 4), source.train(0, 4, 4)};
  };
  const auto labels = [](const HostBatch& batch, std::size_t from) {
    return std::vector<std::int32_t>(batch.label.begin() + static_cast<std::ptrdiff_t>(from), batch.label.end());
  };
  const auto right = make_batch_source(config.settings);
  const ByRank wrong(config.settings);
  EXPECT_EQ(labels(of_layout(*right)[1], 0), labels(right->train(0, 0, 8), 48));
  EXPECT_NE(labels(of_layout(wrong)[1], 0), labels(wrong.train(0, 0, 8), 48));
}

}  // namespace
}  // namespace orthant::test::encoder_padding_test
