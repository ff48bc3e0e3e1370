// What a step tells of its routers: against a naive fp64 reference from the logits, and against gradients of losses
// apart.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <set>

#include <orthant/gate.h>

#include "tests/support/experiment.h"

namespace orthant::routing_meter_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;

// What a gate was given and made of it, one micro-batch of a layer after another.
struct Seen {
  std::vector<float> logits;  // [T, E]
  std::vector<std::uint8_t> valid;
  std::vector<std::int32_t> expert;  // [T, K]
};

template <class T>
std::vector<T> host(const Tensor& t, Stream& s) {
  std::vector<T> values(static_cast<std::size_t>(t.elements()));
  s.download(values.data(), t);
  return values;
}

// A gate of the core, and what it saw.
class Spy final : public Gate {
 public:
  Spy(const std::string& of, std::vector<Seen>& seen) : catalogue_(built_in_catalogue()), of_(of), seen_(seen) {}
  std::int64_t implied_top_k(const MoeSettings& moe) const override { return gate().implied_top_k(moe); }
  GateConfig config(const Settings& settings) const override { return gate().config(settings); }
  bool keeps_state(const MoeSettings& moe) const override { return gate().keeps_state(moe); }
  void choose(const GateChoice& to, const GateInput& from, const GateConfig& config, Stream& s) const override {
    gate().choose(to, from, config, s);
    seen_.push_back({host<float>(from.logits, s), host<std::uint8_t>(from.valid, s), host<std::int32_t>(to.expert, s)});
  }

 private:
  const Gate& gate() const { return catalogue_->get<Gate>(of_); }
  std::shared_ptr<const Catalogue> catalogue_;
  std::string of_;
  std::vector<Seen>& seen_;
};

Config spied(const std::string& router, const Overrides& overrides, std::vector<Seen>& seen) {
  Config config = experiment(test::joined({fmt::format("moe.router=\"{}\"", router)}, overrides));
  const auto catalogue = built_in_catalogue();
  catalogue->add<Gate>("spy", "A test.", std::make_shared<Spy>(router, seen));
  config.settings.catalogue = catalogue;
  config.settings.moe.router = "spy";
  return config;
}

struct Reference {
  double choice_entropy = 0, probability_entropy = 0, margin = 0;
  std::int64_t margins = 0, dead = 0;
};

double entropy(const std::vector<double>& shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  double entropy = 0;
  for (const double share : shares) {
    entropy -= share > 0 ? share / sum * std::log(share / sum) : 0;
  }
  return entropy;
}

Reference reference_of(const std::vector<Seen>& micro_batches, const Settings& settings, const std::string& router) {
  const std::size_t experts = static_cast<std::size_t>(settings.moe.experts);
  std::vector<double> load(experts, 0.0);
  Reference r;
  double tokens = 0;
  for (const Seen& seen : micro_batches) {
    const std::size_t k_count = seen.expert.size() / seen.valid.size();
    for (std::size_t t = 0; t < seen.valid.size(); ++t) {
      if (seen.valid[t] == 0) {
        continue;
      }
      tokens += 1;
      const std::vector<double> x(seen.logits.begin() + static_cast<std::ptrdiff_t>(t * experts),
                                  seen.logits.begin() + static_cast<std::ptrdiff_t>((t + 1) * experts));
      std::vector<double> scores;
      for (const double v : x) {
        scores.push_back(read_keys<ChoiceKeys>(settings.moe.own).score == ScoreKind::sigmoid ? 1 / (1 + std::exp(-v))
                                                                                             : std::exp(v));
      }
      r.probability_entropy += entropy(scores);
      std::set<std::size_t> chosen;
      for (std::size_t k = 0; k < k_count; ++k) {
        if (const std::int32_t e = seen.expert[t * k_count + k]; e >= 0) {
          load[static_cast<std::size_t>(e)] += 1;
          chosen.insert(static_cast<std::size_t>(e));
        }
      }
      if (router == "expert_choice") {
        continue;
      }
      std::vector<std::size_t> ranked(experts);
      std::iota(ranked.begin(), ranked.end(), std::size_t{0});
      std::sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });
      if (router == "gshard") {
        chosen = {ranked[0], ranked[1]};
      }
      double least = INFINITY, other = -INFINITY;
      for (std::size_t e = 0; e < experts; ++e) {
        (chosen.count(e) > 0 ? least : other) = chosen.count(e) > 0 ? std::min(least, x[e]) : std::max(other, x[e]);
      }
      r.margin += least - other;
      r.margins += 1;
    }
  }
  const double most = std::log(static_cast<double>(experts));
  r.choice_entropy = entropy(load) / most;
  r.probability_entropy /= tokens * most;
  r.margin /= static_cast<double>(std::max<std::int64_t>(r.margins, 1));
  r.dead = std::count(load.begin(), load.end(), 0.0);
  return r;
}

struct Case {
  std::string router;
  Overrides overrides;
};
const Case cases[] = {
    {"switch", {"moe.top_k=1"}},
    {"gshard", {"moe.top_k=2"}},
    {"topk", {"moe.top_k=2", "batch.micro_batch=2"}},
    {"topk", {"moe.top_k=3", R"(moe.score="sigmoid")"}},
    {"bias", {"moe.top_k=2", R"(moe.score="sigmoid")", "moe.bias_update_rate=0.5"}},
    {"expert_choice", {"moe.top_k=0", "moe.capacity_factor=1.5"}},
};

TEST(RoutingMeter, IsTheDefinition) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.router);
    std::vector<Seen> seen;
    const Config config = spied(c.router, test::joined({"moe.capacity_factor=1.0"}, c.overrides), seen);
    OneRank rank(config);
    rank->trainer().step(0);  // a bias has moved by the second step
    seen.clear();
    const StepReport report = rank->trainer().step(1, true);
    ASSERT_EQ(report.routing.size(), 2U);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      std::vector<Seen> of_layer;
      for (std::size_t i = layer; i < seen.size(); i += 2) {
        of_layer.push_back(seen[i]);
      }
      const Reference want = reference_of(of_layer, config.settings, c.router);
      const LayerRouting& got = report.routing[layer];
      EXPECT_EQ(got.block, static_cast<int>(layer));
      EXPECT_NEAR(got.choice_entropy, want.choice_entropy, 1e-12);
      EXPECT_NEAR(got.probability_entropy, want.probability_entropy, 1e-6);
      EXPECT_EQ(got.dead_experts, want.dead);
      ASSERT_EQ(got.margin.has_value(), want.margins > 0);
      EXPECT_NEAR(got.margin.value_or(0), want.margin, 1e-6);
    }
  }
}

double norm(const std::vector<float>& x) {
  double squares = 0;
  for (const float v : x) {
    squares += static_cast<double>(v) * v;
  }
  return std::sqrt(squares);
}

// The same weights with one of the three at a time: with the loss alone its gradient is all; of the others the rest.
TEST(RoutingMeter, SplitsTheRoutersGradientByItsCause) {
  for (const Overrides& more :
       {Overrides{"moe.capacity_factor=1.0"}, Overrides{"batch.micro_batch=2", "moe.jitter=0.1"}}) {
    const auto gate = [](int layer) { return fmt::format("model.layers.{}.block_sparse_moe.gate.weight", layer); };
    const auto with = [&](const char* aux, const char* z) { return experiment(test::joined(more, {aux, z})); };
    OneRank loss(with("moe.aux_loss=0", "moe.z_loss=0")), balance(with("moe.aux_loss=0.5", "moe.z_loss=0")),
        z(with("moe.aux_loss=0", "moe.z_loss=0.1")), all(with("moe.aux_loss=0.5", "moe.z_loss=0.1"));
    loss->trainer().gradients(0);
    balance->trainer().gradients(0);
    z->trainer().gradients(0);
    const StepReport report = all->trainer().gradients(0, true);
    for (int layer = 0; layer < 2; ++layer) {
      const auto beyond_the_loss = [&](OneRank& rank) {
        std::vector<float> rest = rank->gradient(gate(layer));
        const std::vector<float> of_loss = loss->gradient(gate(layer));
        std::transform(rest.begin(), rest.end(), of_loss.begin(), rest.begin(), std::minus<>());
        return norm(rest);
      };
      const LayerRouting& got = report.routing[static_cast<std::size_t>(layer)];
      // Layers below feel the auxiliary losses of those above, by the loss's own share: only the last has them apart.
      if (layer == 1) {
        EXPECT_NEAR(got.grad_norm_loss / norm(loss->gradient(gate(layer))), 1, 1e-4);
        EXPECT_NEAR(got.grad_norm_balance / beyond_the_loss(balance), 1, 1e-3);
        EXPECT_NEAR(got.grad_norm_z / beyond_the_loss(z), 1, 1e-3);
      }
      EXPECT_GT(got.grad_norm_loss, 0);
    }
    OneRank alone(with("moe.aux_loss=0", "moe.z_loss=0"));
    const StepReport of_loss = alone->trainer().gradients(0, true);
    for (const LayerRouting& layer : of_loss.routing) {
      EXPECT_NEAR(layer.grad_norm_loss / norm(alone->gradient(gate(layer.block))), 1, 1e-5);
      EXPECT_EQ(layer.grad_norm_balance, 0);
      EXPECT_EQ(layer.grad_norm_z, 0);
    }
  }
}

TEST(RoutingMeter, ChangesNothing) {
  OneRank with(experiment()), without(experiment()), unwanted(experiment({"run.routing_metrics=false"}));
  for (int step = 0; step < 3; ++step) {
    const StepReport a = with->trainer().step(step, true), b = without->trainer().step(step);
    const StepReport c = unwanted->trainer().step(step, true);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
    EXPECT_EQ(a.loss, c.loss);
    EXPECT_FALSE(a.routing.empty());
    EXPECT_TRUE(b.routing.empty());
    EXPECT_TRUE(c.routing.empty());
  }
  for (const std::string& name : with->names()) {
    EXPECT_EQ(with->weight(name), without->weight(name)) << name;
  }
}

// One choice whose weight is normalised is 1 whatever its logit.
TEST(RoutingMeter, OneNormalisedChoiceHasNoGradientOfTheLoss) {
  OneRank rank(experiment({R"(moe.router="topk")", "moe.top_k=1", "moe.normalize_weights=true", "moe.aux_loss=0.01"}));
  for (const LayerRouting& layer : rank->trainer().step(0, true).routing) {
    EXPECT_EQ(layer.grad_norm_loss, 0);
    EXPECT_GT(layer.grad_norm_balance, 0);
  }
}

// --- validations

std::set<std::int32_t> set_of(const Seen& seen, std::size_t token) {
  const std::size_t k_count = seen.expert.size() / seen.valid.size();
  std::set<std::int32_t> set(seen.expert.begin() + static_cast<std::ptrdiff_t>(token * k_count),
                             seen.expert.begin() + static_cast<std::ptrdiff_t>((token + 1) * k_count));
  set.erase(-1);
  return set;
}

TEST(ValidationRouting, TellsWhatChangedAndWhatGoesTogether) {
  for (const char* router : {"topk", "gshard", "expert_choice"}) {
    SCOPED_TRACE(router);
    std::vector<Seen> seen;
    const bool chooses = std::string(router) == "expert_choice";
    const Config config = spied(router,
                                {chooses ? "moe.top_k=0" : "moe.top_k=2", "moe.capacity_factor=1.5",
                                 "batch.micro_batch=2", "optimizer.lr=0.05", "data.validation_sequences=5"},
                                seen);
    OneRank rank(config);
    std::vector<ValidatedRouting> first, second;
    seen.clear();
    first = rank->trainer().validate_sets().routing;
    const std::vector<Seen> before = seen;
    rank->trainer().step(0);
    rank->trainer().step(1);
    seen.clear();
    second = rank->trainer().validate_sets().routing;
    ASSERT_EQ(before.size(), seen.size());
    ASSERT_EQ(second.size(), 2U);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      EXPECT_FALSE(first[layer].churn.has_value());
      std::int64_t tokens = 0, changed = 0;
      std::vector<std::int64_t> pairs(16, 0);
      for (std::size_t pass = layer; pass < seen.size(); pass += 2) {
        for (std::size_t t = 0; t < seen[pass].valid.size(); ++t) {
          if (seen[pass].valid[t] == 0) {
            continue;
          }
          const std::set<std::int32_t> now = set_of(seen[pass], t);
          tokens += 1;
          changed += now != set_of(before[pass], t) ? 1 : 0;
          for (const std::int32_t a : now) {
            for (const std::int32_t b : now) {
              pairs[static_cast<std::size_t>(a * 4 + b)] += a == b ? 0 : 1;
            }
          }
        }
      }
      EXPECT_EQ(tokens, 5 * 12);
      EXPECT_GT(changed, 0);
      EXPECT_LT(changed, tokens);
      EXPECT_DOUBLE_EQ(second[layer].churn.value_or(-1), static_cast<double>(changed) / static_cast<double>(tokens));
      EXPECT_EQ(second[layer].pairs, pairs);
    }
  }
}

}  // namespace
}  // namespace orthant::routing_meter_test
