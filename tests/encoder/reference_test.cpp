// Two tiny encoders against PyTorch and transformers (make_reference.py): BERT over 20 steps, ModernBERT's logits.
#include "core/train/micro_batches.h"
#include "tests/encoder/texts.h"
#include "tests/reference/rig.h"

namespace orthant::test::encoder_reference_test {
namespace {

class EncoderReference : public Reference {
 public:
  explicit EncoderReference(const std::string& name) : Reference("../encoder/" + name) {}
};

// The reference's batches, one a step.
class Batches final : public BatchSource {
 public:
  Batches(const Reference& r, std::int64_t types, std::int64_t sequences, std::int64_t positions)
      : id_(r.integers("id")),
        label_(r.integers("label")),
        types_(types),
        sequences_(sequences),
        positions_(positions) {
    if (types > 0) {
      type_ = r.integers("type");
      length_ = r.integers("length");
    }
  }
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    HostBatch batch;
    batch.sequences = count;
    batch.positions = positions_;
    batch.columns = types_;
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t sequence = step * sequences_ + row;
      const std::int64_t length = length_.empty() ? positions_ : length_.at(static_cast<std::size_t>(sequence));
      for (std::int64_t p = 0; p < positions_; ++p) {
        const auto at = static_cast<std::size_t>(sequence * positions_ + p);
        const bool inside = p < length;
        batch.token.push_back(id_.at(at));
        batch.label.push_back(label_.at(at));
        batch.position.push_back(inside ? static_cast<std::int32_t>(p) : 0);
        batch.first.push_back(inside ? 0 : static_cast<std::int32_t>(p));
        batch.valid.push_back(inside ? 1 : 0);
        batch.index.push_back(row * positions_ + p);
        for (std::int64_t type = 0; type < types_; ++type) {
          batch.value.push_back(type_.at(at) == type ? 1.0f : 0.0f);
        }
      }
    }
    return batch;
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return train(0, first, count); }
  std::int64_t validation_sequences() const override { return 0; }
  std::int64_t vocabulary() const override { return 40; }

 private:
  std::vector<std::int32_t> id_, label_, type_, length_;
  std::int64_t types_, sequences_, positions_;
};

Overrides sizes() {
  return {R"(model.kind="bert")",
          "moe.experts=0",
          "data.sequence_length=12",
          "batch.sequences=4",
          "model.d_model=24",
          "model.heads=4",
          "model.d_ff=36",
          "model.vocab_size=40",
          R"(model.norm="layernorm")",
          "model.embedding_norm=true",
          "model.tie_embeddings=true",
          "model.head_bias=true",
          R"(model.gelu="exact")",
          R"(train.objective="masked")"};
}

TEST(Bert, IsThatOfTransformersOverTwentySteps) {
  const EncoderReference r("bert_tiny");
  const Overrides model =
      joined(sizes(), {"model.layers=2", "model.post_norm=true", "model.dense_biases=true", "model.biases=true",
                       "model.output_bias=true", "model.token_types=2", R"(model.positions="learned")",
                       R"(model.activation="gelu")", "model.norm_eps=1e-12", "optimizer.clip_grad_norm=0",
                       fmt::format("optimizer.lr={}", r.number("hyper/lr")),
                       fmt::format("optimizer.eps={}", r.number("hyper/eps")),
                       fmt::format("optimizer.weight_decay={}", r.number("hyper/weight_decay")),
                       fmt::format("optimizer.betas=[{}, {}]", r.number("hyper/beta1"), r.number("hyper/beta2"))});
  const Config config = experiment(model, plugin_encoder);
  const Batches source(r, 2, 4, 12);
  OneRank rank(config, &source);
  const std::vector<std::string> names = r.below("weight/");
  EXPECT_EQ(names.size(), rank->names().size());
  for (const std::string& name : names) {
    rank->set_weight(name, r.floats("weight/" + name));
  }
  const std::vector<float> losses = r.floats("loss"), accuracy = r.floats("accuracy");
  const int last = static_cast<int>(losses.size()) - 1;
  const auto expect_gradients = [&](const std::string& which) {
    for (const std::string& name : names) {
      if (!name.ends_with("k_proj.bias")) {  // adds the same to all scores of a query: its gradient is rounding alone
        EXPECT_LE(difference(rank->gradient(name), r.floats(which + "/" + name)), 1e-4) << which << " " << name;
      }
    }
  };
  for (int step = 0; step <= last; ++step) {
    const StepReport report = rank->trainer().gradients(step);
    const auto at = static_cast<std::size_t>(step);
    EXPECT_NEAR(report.loss, static_cast<double>(losses[at]), 1e-4 * static_cast<double>(losses[at])) << step;
    EXPECT_NEAR(report.figures.at("masked_accuracy"), static_cast<double>(accuracy[at]), 1e-6) << step;
    if (step == 0 || step == last) {
      expect_gradients(step == 0 ? "first" : "last");
    }
    rank->trainer().apply(step);
  }
}

TEST(ModernBert, HasTheLogitsOfTransformers) {
  const EncoderReference r("modernbert_tiny");
  const Config config = experiment(joined(sizes(), {"model.layers=3", R"(model.activation="geglu")",
                                                    "model.rope_theta=160000.0", "model.rope_local_theta=10000.0",
                                                    fmt::format("model.sliding_window={}", r.integer("hyper/window")),
                                                    "model.full_attention_every=2", "model.full_attention_first=true"}),
                                   plugin_encoder);
  const Batches source(r, 0, 4, 12);
  OneRank rank(config, &source);
  for (const std::string& name : rank->names()) {
    if (name.ends_with("norm.bias")) {
      rank->set_weight(name, std::vector<float>(24, 0));  // its norms have none
    }
  }
  for (const std::string& name : r.below("weight/")) {
    rank->set_weight(name, r.floats("weight/" + name));
  }
  EXPECT_NEAR(rank->trainer().gradients(0).loss, r.number("loss"), 1e-5 * r.number("loss"));
  StepSums sums;
  const Plan& plan = rank->session().plan();
  const DeviceBatch batch = upload(source.train(0, 0, 4), plan, rank->stream());
  const StepContext ctx{
      .plan = plan, .stream = rank->stream(), .batch = batch, .sums = sums, .training = false, .loss_scale = 1};
  auto& model = rank->trainer().model();
  const Tensor logits = model.logits(ctx, model.forward(ctx, {}, 0, model.head()).front());
  std::vector<float> found(static_cast<std::size_t>(logits.elements()));
  rank->stream().download(found.data(), logits);
  EXPECT_LE(difference(found, r.floats("logits")), 1e-5);
}

}  // namespace
}  // namespace orthant::test::encoder_reference_test
