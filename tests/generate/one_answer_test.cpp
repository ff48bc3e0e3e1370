// One engine, one answer: logits, losses and choices of experts of tokens that are fed to a cache, in whatever portions
// and with whatever others, have the bits of the training forward pass on whole sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <orthant/random.h>

#include "apps/lm/prefix_cache.h"
#include "apps/pretrained/one_rank_model.h"
#include "core/data/batch_builder.h"
#include "core/session/session.h"
#include "parallel/local/thread_world.h"
#include "router/routing_tap.h"
#include "tests/support/paths.h"

namespace orthant::one_answer_test {
namespace {

constexpr int sequences = 3;
constexpr std::int64_t positions = 150;  // more than two tiles of keys

// What routers chose: [routed layer, sequence, position] -> experts.
using Chosen = std::map<std::array<std::int64_t, 3>, std::vector<std::int32_t>>;

// Of whole sequences of `positions`.
class Choices final : public RoutingTap {
 public:
  void decided(const StepContext& ctx, int routed, const GateInput&, const GateChoice& made) override {
    const std::ptrdiff_t k = made.expert.dim(1);
    std::vector<std::int32_t> expert(static_cast<std::size_t>(made.expert.elements()));
    ctx.stream.download(expert.data(), made.expert);
    ctx.stream.synchronize();
    for (std::ptrdiff_t i = 0; i < made.expert.dim(0); ++i) {
      chosen[{routed, i / positions, i % positions}] = {expert.begin() + i * k, expert.begin() + (i + 1) * k};
    }
  }
  Chosen chosen;
};

std::vector<std::vector<std::int32_t>> random_tokens(std::int64_t vocabulary) {
  std::vector<std::vector<std::int32_t>> tokens(sequences);
  for (int s = 0; s < sequences; ++s) {
    for (std::int64_t i = 0; i < positions; ++i) {
      tokens[static_cast<std::size_t>(s)].push_back(static_cast<std::int32_t>(
          below({5}, static_cast<std::uint64_t>(s * positions + i), static_cast<std::uint64_t>(vocabulary))));
    }
  }
  return tokens;
}

// Of whole sequences, as training computes them: [sequence][position].
struct Trained {
  std::vector<std::vector<std::vector<float>>> logits;
  Choices choices;
};

Trained by_training(const OpenedModel& model, const std::vector<std::vector<std::int32_t>>& tokens) {
  Trained trained;
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel whole(model.config(), model.reader(), positions, 2, communicator);
    HostBatch batch = padding_batch(0, sequences, positions);
    for (int s = 0; s < sequences; ++s) {
      put_document(batch, s, 0, tokens[static_cast<std::size_t>(s)], positions);
    }
    StepSums sums;
    sums.tap = &trained.choices;
    const Tensor logits = whole.logits(whole.forward(batch, whole.head(), sums));
    std::vector<float> host(static_cast<std::size_t>(logits.elements()));
    whole.stream().download(host.data(), logits);
    whole.stream().synchronize();
    const auto width = static_cast<std::ptrdiff_t>(logits.dim(1));
    trained.logits.resize(sequences);
    auto at = host.begin();
    for (auto& of_sequence : trained.logits) {
      for (std::int64_t i = 0; i < positions; ++i, at += width) {
        of_sequence.emplace_back(at, at + width);
      }
    }
  });
  return trained;
}

::testing::AssertionResult same_bits(std::span<const float> a, const std::vector<float>& b) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " logits, up to " << worst << " apart";
}

struct Case {
  std::string name, model;
  std::vector<std::string> overrides;
  std::int64_t latent_room = default_latent_room;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class OneAnswer : public testing::TestWithParam<Case> {
 protected:
  OpenedModel open() const {
    return {paths::published_model(GetParam().model), "test", GetParam().overrides, keys_of_plugin, kinds_of_plugin};
  }
};

TEST_P(OneAnswer, InWhateverPortions) {
  const OpenedModel model = open();
  const auto tokens = random_tokens(model.config().settings.model.vocab_size);
  const Trained trained = by_training(model, tokens);
  for (const int threads : {1, 2}) {
    for (const bool together : {false, true}) {
      Chosen chosen;
      const auto chose = [&](int sequence, std::int64_t position, int routed, std::span<const std::int32_t> experts) {
        chosen[{routed, sequence, position}] = {experts.begin(), experts.end()};
      };
      run_threads(1, [&](Communicator& communicator) {
        Engine engine(model, {.threads = threads, .latent_room = GetParam().latent_room, .chose = chose}, communicator);
        const auto seen = [&](int sequence, std::int64_t position, std::span<const float> logits) {
          EXPECT_TRUE(
              same_bits(logits, trained.logits[static_cast<std::size_t>(sequence)][static_cast<std::size_t>(position)]))
              << "sequence " << sequence << ", position " << position;
        };
        if (together) {
          // Portions of 1 to 70 tokens, of all sequences in one pass.
          for (std::uint64_t round = 0; engine.length(0) + engine.length(1) + engine.length(2) < sequences * positions;
               ++round) {
            std::vector<Feed> feeds;
            for (int s = 0; s < sequences; ++s) {
              const std::int64_t at = engine.length(s);
              const std::int64_t wish =
                  1 + static_cast<std::int64_t>(below({6}, round * sequences + s, round % 2 == 0 ? 3 : 70));
              const std::int64_t count = std::min(positions - at, wish);
              if (count > 0) {
                feeds.push_back({s, std::span(tokens[s]).subspan(at, count), true});
              }
            }
            std::vector<std::int64_t> before;
            for (const Feed& feed : feeds) {
              before.push_back(engine.length(feed.sequence));
            }
            engine.feed(feeds, [&](std::size_t feed, std::size_t token, std::span<const float> logits) {
              seen(feeds[feed].sequence, before[feed] + static_cast<std::int64_t>(token), logits);
            });
          }
        } else {
          for (int s = 0; s < sequences; ++s) {
            for (std::int64_t i = 0; i < positions; ++i) {
              const Feed one{s, std::span(tokens[s]).subspan(i, 1), false};
              engine.feed({&one, 1},
                          [&](std::size_t, std::size_t, std::span<const float> logits) { seen(s, i, logits); });
            }
          }
        }
      });
      EXPECT_EQ(chosen, trained.choices.chosen);
    }
  }
}

// Behind pages of a sequence that began alike, which may be gone by then, and that goes on otherwise.
TEST_P(OneAnswer, BehindSharedPages) {
  const OpenedModel model = open();
  const auto tokens = random_tokens(model.config().settings.model.vocab_size);
  const auto logits_of = [](Engine& engine, int sequence, std::span<const std::int32_t> fed) {
    const Feed feed{sequence, fed, true};
    std::vector<std::vector<float>> rows;
    engine.feed({&feed, 1}, [&](std::size_t, std::size_t, std::span<const float> row) {
      rows.emplace_back(row.begin(), row.end());
    });
    return rows;
  };
  for (const std::size_t shared : {std::size_t{64}, std::size_t{100}, std::size_t{128}, std::size_t{149}}) {
    std::vector<std::int32_t> mixed(tokens[0].begin(), tokens[0].begin() + static_cast<std::ptrdiff_t>(shared));
    mixed.insert(mixed.end(), tokens[1].begin(), tokens[1].begin() + 30);
    run_threads(1, [&](Communicator& communicator) {
      Engine engine(model, {.threads = 2, .latent_room = GetParam().latent_room}, communicator);
      PrefixCache prefixes(engine, std::int64_t{1} << 30);
      const auto first = logits_of(engine, 0, tokens[0]), plain = logits_of(engine, 1, mixed);
      prefixes.keep(0, tokens[0]);
      EXPECT_EQ(prefixes.pages(), 2);
      engine.forget(shared == 100 ? 0 : 1);
      const std::size_t known = static_cast<std::size_t>(prefixes.begin(2, mixed));
      EXPECT_EQ(known, shared / 64 * 64);
      const auto behind = logits_of(engine, 2, std::span(mixed).subspan(known));
      ASSERT_EQ(behind.size(), mixed.size() - known);
      for (std::size_t i = 0; i < behind.size(); ++i) {
        EXPECT_TRUE(same_bits(behind[i], plain[known + i])) << "position " << known + i;
      }
      EXPECT_EQ(prefixes.begin(3, std::span(tokens[0]).first(128)), 64) << "the last token is left to be fed";
      const auto again = logits_of(engine, 3, std::span(tokens[0]).subspan(64));
      for (std::size_t i = 0; i < again.size(); ++i) {
        EXPECT_TRUE(same_bits(again[i], first[64 + i])) << "position " << 64 + i;
      }
    });
  }
}

TEST(PrefixCache, ForgetsWhatWasUsedLeastRecently) {
  const OpenedModel model(paths::published_model("mixtral"), "test", {}, keys_of_plugin, kinds_of_plugin);
  const auto tokens = random_tokens(model.config().settings.model.vocab_size);
  run_threads(1, [&](Communicator& communicator) {
    Engine engine(model, {}, communicator);
    for (int s = 0; s < sequences; ++s) {
      const Feed feed{s, tokens[static_cast<std::size_t>(s)], false};
      engine.feed({&feed, 1}, [](std::size_t, std::size_t, std::span<const float>) {});
    }
    const std::int64_t page = engine.page(0, 0).bytes;
    PrefixCache prefixes(engine, 4 * page);
    int next = 10;
    const auto known = [&](int s) { return prefixes.begin(next++, tokens[static_cast<std::size_t>(s)]); };
    prefixes.keep(0, tokens[0]);
    prefixes.keep(1, tokens[1]);
    EXPECT_EQ(prefixes.bytes(), 4 * page);
    EXPECT_EQ(known(0), 128);  // and so it is the most recent
    prefixes.keep(2, std::span(tokens[2]).first(100));
    EXPECT_EQ(known(2), 64);
    EXPECT_EQ(known(1), 64) << "its second page is gone, for it is behind the first";
    EXPECT_EQ(known(0), 128);
    prefixes.keep(2, tokens[2]);
    EXPECT_EQ(prefixes.pages(), 4);
    EXPECT_EQ(known(1), 0);
    EXPECT_EQ(prefixes.asked(), 5 * positions);
    EXPECT_EQ(prefixes.found(), 128 + 64 + 64 + 128);
    PrefixCache none(engine, 0);
    none.keep(0, tokens[0]);
    EXPECT_EQ(none.begin(next++, tokens[0]), 0);
    PrefixCache small(engine, page + page / 2);
    small.keep(0, tokens[0]);
    EXPECT_EQ(small.pages(), 1);
  });
}

// log_probability has the bits of the loss that the head of training computes.
TEST_P(OneAnswer, TheLossToo) {
  const OpenedModel model = open();
  const auto tokens = random_tokens(model.config().settings.model.vocab_size);
  run_threads(1, [&](Communicator& communicator) {
    OneRankModel whole(model.config(), model.reader(), positions, 1, communicator);
    Engine engine(model, {}, communicator);
    const Feed feed{0, tokens[0], true};
    std::vector<std::vector<float>> logits;
    engine.feed({&feed, 1}, [&](std::size_t, std::size_t, std::span<const float> row) {
      logits.emplace_back(row.begin(), row.end());
    });
    for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{148}}) {
      HostBatch batch = padding_batch(0, 1, positions);
      put_document(batch, 0, 0, tokens[0], positions);
      std::fill(batch.label.begin(), batch.label.end(), -1);
      batch.label[at] = tokens[0][at + 1];
      StepSums sums;
      sums.loss = whole.device().empty(DType::f64, {1});
      whole.stream().fill(sums.loss, 0);
      whole.forward(batch, whole.layers(), sums);
      double nats = 0;
      whole.stream().download(&nats, sums.loss);
      whole.stream().synchronize();
      EXPECT_EQ(-nats, static_cast<double>(engine.log_probability(logits[at], tokens[0][at + 1]))) << at;
    }
  });
}

std::vector<Case> cases() {
  std::vector<Case> all = {{"switch", "mixtral", {"moe.router=\"switch\"", "moe.top_k=1"}},
                           {"window", "mistral", {"model.sliding_window=20"}}};
  // Latent attention whose keys and values find no room, and room for some: three sequences of 150 tokens in two layers
  // take 18 tiles of 64 tokens.
  for (const std::int64_t tiles : {0, 7}) {
    for (const std::string model : {"deepseek_v2", "deepseek_v3"}) {
      const auto room = [&](DType dtype) { return tiles * KeyValueCache(4, 10, dtype).bytes_of(64); };
      all.push_back({fmt::format("{}_fp32_room_for_{}", model, tiles), model, {}, room(DType::f32)});
      all.push_back(
          {fmt::format("{}_bf16_room_for_{}", model, tiles), model, {"run.dtype=\"bf16\""}, room(DType::bf16)});
      all.push_back(
          {fmt::format("{}_window_room_for_{}", model, tiles), model, {"model.sliding_window=20"}, room(DType::f32)});
    }
  }
  for (const std::string model : {"llama", "mistral", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "deepseek_v2",
                                  "deepseek_v3", "glm4_moe", "gpt_oss"}) {
    all.push_back({model + "_fp32", model, {}});
    all.push_back({model + "_bf16", model, {"run.dtype=\"bf16\""}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, OneAnswer, testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace orthant::one_answer_test
