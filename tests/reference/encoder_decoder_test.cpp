// Twenty steps of T5 and Switch against transformers' own, from the same weights and batches (make_encoder_decoder.py).
#include <gtest/gtest.h>

#include <algorithm>

#include "core/data/batch_builder.h"
#include "tests/reference/rig.h"
#include "tests/support/experiment.h"

namespace orthant::test::encoder_decoder_reference_test {
namespace {

// Of losses and gradients, from the first step to the last.
constexpr double tolerance_of_steps = 1e-4;

// The reference's batches: source ids, -1 where it has ended; target ids and labels, -1 where it has.
class GivenBatches final : public BatchSource {
 public:
  explicit GivenBatches(const Reference& r)
      : source_(r.integers("source")), target_(r.integers("target")), label_(r.integers("label")) {
    const std::vector<std::int64_t>& of_source = r.file().at("source").sizes;
    sequences_ = of_source[1];
    spaces_ = {{.name = "target", .positions = r.file().at("label").sizes[2]},
               {.name = "source", .positions = of_source[2]}};
  }

  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    HostBatch batch = padding_batch(first, count, spaces_);
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t number = step * sequences_ + first + row;
      put_document(batch, row, 0, document(target_, label_, number, spaces_[0].positions, -1));
      put_document(batch.spaces[0], row, 0, document(source_, {}, number, spaces_[1].positions, -1));
    }
    return batch;
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return train(0, first, count); }
  std::int64_t validation_sequences() const override { return sequences_; }
  std::int64_t vocabulary() const override { return 29; }
  const std::vector<Space>& spaces() const { return spaces_; }

 private:
  // Up to where `label`, or without one `token`, is `end`.
  static SequenceDocument document(const std::vector<std::int32_t>& token, const std::vector<std::int32_t>& label,
                                   std::int64_t row, std::int64_t positions, std::int32_t end) {
    SequenceDocument made;
    const std::vector<std::int32_t>& ends = label.empty() ? token : label;
    for (std::int64_t i = row * positions; i < (row + 1) * positions; ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      if (ends[at] == end) {
        break;
      }
      made.token.push_back(token[at]);
      made.label.push_back(label.empty() ? -1 : label[at]);
    }
    return made;
  }

  std::vector<std::int32_t> source_, target_, label_;
  std::int64_t sequences_ = 0;
  std::vector<Space> spaces_;
};

struct Case {
  std::string name, file, prefix;
  Overrides overrides;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const Overrides tied = {"model.tie_embeddings=true", "model.logit_divisor=4.242640687119285"};
const Overrides relu = {R"(model.activation="relu")"};
const Overrides switched = joined(joined(tied, relu), {"moe.experts=4", R"(moe.router="switch")", "moe.top_k=1",
                                                       "moe.every=2", "moe.aux_loss=0.02", "moe.z_loss=0.003"});
const std::vector<Case> cases = {
    {"t5", "t5_tiny", "", joined(joined(tied, relu), {"moe.experts=0"})},
    {"t5_gated", "t5_gated_tiny", "", {R"(model.activation="geglu")", "moe.experts=0"}},
    {"switch", "switch_tiny", "dropless/", switched},
    // ceil(1.25 * 12 / 4) = 4 seats of an expert in a sequence, as expert_capacity = 4.
    {"switch_drops", "switch_tiny", "drops/", joined(switched, {"moe.capacity_factor=1.25"})}};

class EncoderDecoderSteps : public testing::TestWithParam<Case> {
 protected:
  EncoderDecoderSteps() : reference_(GetParam().file), source_(reference_) {}

  Config config() const {
    Overrides all = {R"(model.kind="t5")",
                     R"(data.source="rewriting")",
                     "model.layers=3",
                     "model.encoder_layers=2",
                     "model.d_model=18",
                     "model.heads=3",
                     "model.head_dim=5",
                     "model.d_ff=22",
                     "model.vocab_size=29",
                     "model.norm_eps=1e-6",
                     "model.attention_scale=1.0",
                     "model.relative_buckets=8",
                     "model.relative_distance=9",
                     "batch.sequences=4"};
    for (const char* name : {"lr", "eps", "weight_decay", "clip_grad_norm"}) {
      all.push_back(fmt::format("optimizer.{}={:.9g}", name, reference_.number(std::string("hyper/") + name)));
    }
    all.push_back(fmt::format("optimizer.betas=[{:.9g}, {:.9g}]", reference_.number("hyper/beta1"),
                              reference_.number("hyper/beta2")));
    all.push_back(fmt::format("data.sequence_length={}", source_.spaces()[0].positions));
    all.push_back(fmt::format("model.source_length={}", source_.spaces()[1].positions));
    return experiment(joined(all, GetParam().overrides), "[plugins.encoder_decoder]\n");
  }
  std::vector<float> floats(const std::string& name) const { return reference_.floats(GetParam().prefix + name); }

  void expect_gradients(TestRank& rank, int step) {
    const std::string prefix = fmt::format("{}grad_{}/", GetParam().prefix, step);
    const std::vector<std::string> names = reference_.below(prefix);
    EXPECT_EQ(names.size(), rank.names().size());
    for (const std::string& name : names) {
      EXPECT_LE(difference(rank.gradient(name), reference_.floats(prefix + name)), tolerance_of_steps)
          << name << ", step " << step;
    }
  }

  Reference reference_;
  GivenBatches source_;
};

TEST_P(EncoderDecoderSteps, AreThoseOfTransformers) {
  const Config config = this->config();
  OneRank rank(config, &source_);
  for (const std::string& name : reference_.below("weight/")) {
    rank->set_weight(name, reference_.floats("weight/" + name));
  }
  const std::vector<float> losses = floats("total_loss"), norms = floats("grad_norm");
  const MoeSettings& moe = config.settings.moe;
  const std::size_t routed = moe.experts > 0 ? 2 : 0;  // layers, one in each stack
  ASSERT_EQ(losses.size(), 20u);
  std::int64_t dropped = 0;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const StepReport report = rank->trainer().step(static_cast<std::int64_t>(step));
    double total = report.loss;
    ASSERT_EQ(report.layers.size(), routed);
    if (routed > 0) {
      const double balance = static_cast<double>(routed) * report.aux_loss,
                   z = static_cast<double>(routed) * report.z_loss;
      EXPECT_NEAR(balance, static_cast<double>(floats("balance")[step]), 1e-5 * balance) << step;
      EXPECT_NEAR(z, static_cast<double>(floats("z")[step]), 1e-5 * z) << step;
      total += moe.aux_loss * balance + moe.z_loss * z;
    }
    for (const LayerCounters& layer : report.layers) {
      dropped += layer.dropped_by_capacity;
    }
    const double loss = static_cast<double>(losses[step]), norm = static_cast<double>(norms[step]);
    EXPECT_NEAR(total, loss, tolerance_of_steps * loss) << step;
    EXPECT_NEAR(report.grad_norm, norm, tolerance_of_steps * norm) << step;
    if (step == 0 || step + 1 == losses.size()) {
      expect_gradients(*rank, static_cast<int>(step));
    }
  }
  EXPECT_EQ(dropped > 0, moe.capacity_factor > 0);
  for (const std::string& name : reference_.below(GetParam().prefix + "after/")) {
    EXPECT_LE(difference(rank->weight(name), floats("after/" + name)), tolerance_of_steps) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EncoderDecoderSteps, testing::ValuesIn(cases),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace orthant::test::encoder_decoder_reference_test
