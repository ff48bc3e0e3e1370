// The whole model and the optimizer against a two-layer MixtralForCausalLM of transformers.
#include <algorithm>
#include <array>

#include "core/train/built_in_optimizers.h"
#include "core/train/trainer.h"
#include "tests/reference/rig.h"

namespace orthant::test::mixtral_test {
namespace {

Settings settings_of(const Reference& r) {
  Settings s;
  s.data.sequence_length = r.integer("hyper/positions");
  s.batch.sequences = r.integer("hyper/batch");
  s.model.layers = r.integer("hyper/num_hidden_layers");
  s.model.d_model = r.integer("hyper/hidden_size");
  s.model.heads = r.integer("hyper/num_attention_heads");
  s.model.kv_heads = r.integer("hyper/num_key_value_heads");
  s.model.vocab_size = r.integer("hyper/vocab_size");
  s.model.norm_eps = r.number("hyper/rms_norm_eps");
  s.model.own["rope_theta"] = r.number("hyper/rope_theta");
  s.model.activation = Activation::swiglu;
  s.moe.experts = r.integer("hyper/num_local_experts");
  s.moe.top_k = r.integer("hyper/num_experts_per_tok");
  s.moe.d_expert = r.integer("hyper/intermediate_size");
  s.moe.aux_loss = r.number("hyper/router_aux_loss_coef");
  s.optimizer.lr = r.number("hyper/lr");
  write_keys<AdamKeys>(s.optimizer.own, {{r.number("hyper/beta1"), r.number("hyper/beta2")}, r.number("hyper/eps")});
  s.optimizer.weight_decay = r.number("hyper/weight_decay");
  s.optimizer.clip_grad_norm = r.number("hyper/clip_grad_norm");
  s.optimizer.schedule = "constant";
  return s;
}

// The reference's batch, at every step.
class OneBatch final : public BatchSource {
 public:
  OneBatch(const Reference& r, const Settings& s)
      : token_(r.integers("id")),
        label_(r.integers("label")),
        positions_(s.data.sequence_length),
        vocabulary_(s.model.vocab_size) {}

  HostBatch train(std::int64_t, std::int64_t first, std::int64_t count) const override {
    HostBatch batch{.sequences = count,
                    .positions = positions_,
                    .token = {},
                    .label = {},
                    .position = {},
                    .first = {},
                    .valid = {},
                    .index = {}};
    for (std::int64_t t = first * positions_; t < (first + count) * positions_; ++t) {
      batch.token.push_back(token_.at(t));
      batch.label.push_back(label_.at(t));
      batch.position.push_back(static_cast<std::int32_t>(t % positions_));
      batch.first.push_back(0);
      batch.valid.push_back(1);
      batch.index.push_back(t);
    }
    return batch;
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override { return train(0, first, count); }
  std::int64_t validation_sequences() const override { return static_cast<std::int64_t>(token_.size()) / positions_; }
  std::int64_t vocabulary() const override { return vocabulary_; }

 private:
  std::vector<std::int32_t> token_, label_;
  std::int64_t positions_, vocabulary_;
};

class TinyMixtral : public testing::Test {
 protected:
  TinyMixtral() : TinyMixtral(0) {}
  explicit TinyMixtral(std::int64_t micro_batch)
      : settings_(with_micro_batch(settings_of(reference_), micro_batch)),
        rank_(settings_),
        source_(reference_, settings_),
        trainer_(rank_.plan(), rank_.stream(), source_) {
    for (const std::string& name : reference_.below("weight/")) {
      rank_.set(trainer_.parameters(), name, reference_.floats("weight/" + name));
    }
    trainer_.parameters().refresh_weights(rank_.plan(), Change::loaded, {.stream = rank_.stream()});
  }

  static Settings with_micro_batch(Settings s, std::int64_t sequences) {
    s.batch.micro_batch = sequences;
    return s;
  }

  // What the reference trains on: the loss and the balance loss of every layer.
  double total(const StepReport& report) const {
    return report.loss + settings_.moe.aux_loss * static_cast<double>(settings_.model.layers) * report.aux_loss;
  }

  void expect_first_step() {
    const StepReport report = trainer_.gradients(0);
    expect_equal("cross entropy", report.loss, reference_.number("ce_loss"));
    expect_equal("balance loss", report.aux_loss, reference_.number("aux_loss"));
    expect_equal("total loss", total(report), reference_.number("total_loss"));
    expect_equal("gradient norm", report.grad_norm, reference_.number("grad_norm"));
    const std::vector<std::string> names = reference_.below("grad/");
    EXPECT_EQ(names.size(), reference_.below("weight/").size());
    for (const std::string& name : names) {
      expect_equal("gradient of " + name, rank_.gradient(trainer_.parameters(), name),
                   reference_.floats("grad/" + name));
    }
    expect_loads(report);
  }

  // Every choice of every token, counted from the reference's logits.
  void expect_loads(const StepReport& report) {
    ASSERT_EQ(static_cast<std::int64_t>(report.layers.size()), settings_.model.layers);
    const std::size_t experts = static_cast<std::size_t>(settings_.moe.experts);
    for (std::size_t layer = 0; layer < report.layers.size(); ++layer) {
      const std::vector<float> logits = reference_.floats(fmt::format("router_logits/{}", layer));
      std::vector<std::int64_t> load(experts, 0);
      for (std::size_t t = 0; t < logits.size(); t += experts) {
        std::vector<std::size_t> order(experts);
        for (std::size_t e = 0; e < experts; ++e) {
          order[e] = e;
        }
        std::sort(order.begin(), order.end(),
                  [&](std::size_t a, std::size_t b) { return logits[t + a] > logits[t + b]; });
        for (std::size_t k = 0; k < static_cast<std::size_t>(settings_.moe.top_k); ++k) {
          ++load[order[k]];
        }
      }
      EXPECT_EQ(report.layers[layer].load, load) << "layer " << layer;
    }
  }

  Reference reference_{"mixtral_tiny"};
  Settings settings_;
  Rank rank_;
  OneBatch source_;
  Trainer trainer_;
};

TEST_F(TinyMixtral, HasTheParametersOfAMixtralCheckpoint) {
  std::vector<std::string> ours, theirs = reference_.below("weight/");
  for (const auto& group : trainer_.parameters().groups()) {
    for (const Param& p : group->params) {
      ours.push_back(p.spec.name);
      std::vector<std::int64_t> sizes;
      for (int i = 0; i < p.spec.global.rank(); ++i) {
        sizes.push_back(p.spec.global[i]);
      }
      EXPECT_EQ(reference_.file().at("weight/" + p.spec.name).sizes, sizes) << p.spec.name;
    }
  }
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  EXPECT_EQ(ours, theirs);
}

TEST_F(TinyMixtral, Logits) {
  const DeviceBatch batch = rank_.batch(settings_.batch.sequences, settings_.data.sequence_length,
                                        reference_.integers("id"), reference_.integers("label"));
  StepSums sums = rank_.sums();
  const StepContext ctx{
      .plan = rank_.plan(), .stream = rank_.stream(), .batch = batch, .sums = sums, .training = false};
  // The head never holds the logits of a whole batch: its norm and product are written out here, in fp64.
  const std::vector<float> x = rank_.floats(trainer_.model().forward(ctx, {}, 0, trainer_.model().head()).front());
  const std::vector<float> scale = reference_.floats("weight/model.norm.weight");
  const std::vector<float> head = reference_.floats("weight/lm_head.weight");
  const std::size_t d = scale.size(), vocabulary = head.size() / d;
  std::vector<float> logits;
  for (std::size_t t = 0; t < x.size() / d; ++t) {
    double squares = 0;
    for (std::size_t i = 0; i < d; ++i) {
      squares += static_cast<double>(x[t * d + i]) * static_cast<double>(x[t * d + i]);
    }
    const double root = std::sqrt(squares / static_cast<double>(d) + settings_.model.norm_eps);
    for (std::size_t v = 0; v < vocabulary; ++v) {
      double sum = 0;
      for (std::size_t i = 0; i < d; ++i) {
        sum += static_cast<double>(x[t * d + i]) * static_cast<double>(scale[i]) * static_cast<double>(head[v * d + i]);
      }
      logits.push_back(static_cast<float>(sum / root));
    }
  }
  expect_equal("logits", logits, reference_.floats("logits"));
}

TEST_F(TinyMixtral, LossesAndEveryGradient) {
  expect_first_step();
}

TEST_F(TinyMixtral, ValidationLoss) {
  expect_equal("validation loss", trainer_.validate(), reference_.number("ce_loss"));
}

TEST_F(TinyMixtral, ThreeStepsOfAdamW) {
  const std::vector<float> losses = reference_.floats("total_loss_per_step");
  const std::vector<float> norms = reference_.floats("grad_norm_per_step");
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_GT(norms[0], settings_.optimizer.clip_grad_norm) << "the reference is to clip";
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const StepReport report = trainer_.step(static_cast<std::int64_t>(step));
    expect_equal(fmt::format("loss of step {}", step), total(report), static_cast<double>(losses[step]));
    expect_equal(fmt::format("norm of step {}", step), report.grad_norm, static_cast<double>(norms[step]));
  }
  const std::vector<std::string> names = reference_.below("after/");
  EXPECT_EQ(names.size(), reference_.below("weight/").size());
  for (const std::string& name : names) {
    expect_equal(name, rank_.weight(trainer_.parameters(), name), reference_.floats("after/" + name));
  }
}

class TinyMixtralInMicroBatches : public TinyMixtral {
 protected:
  TinyMixtralInMicroBatches() : TinyMixtral(1) {}
};

TEST_F(TinyMixtralInMicroBatches, LossesAndEveryGradient) {
  expect_first_step();
}

}  // namespace
}  // namespace orthant::test::mixtral_test
