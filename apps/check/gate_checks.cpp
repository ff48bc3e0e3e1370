#include "apps/check/gate_checks.h"

#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "core/dry_run/meta_device.h"

namespace orthant {
namespace {

constexpr std::int64_t made_up_tokens = 24, made_up_vocabulary = 32;
constexpr float aux = 0.3f, z = 0.2f;

// What is wrong, as an exception: the first thing ends the check.
class Wrong : public Error {
 public:
  using Error::Error;
};

template <class... Args>
void expect(bool right, fmt::format_string<Args...> text, Args&&... args) {
  if (!right) {
    throw Wrong(fmt::format(text, std::forward<Args>(args)...));
  }
}

class GateRig {
 public:
  GateRig(const Settings& settings, std::unique_ptr<Device> device)
      : settings_(settings),
        gate_(gate_of(settings)),
        config_(gate_.config(settings)),
        device_(std::move(device)),
        stream_(device_->make_main_stream()) {
    config_.group_tokens = made_up_tokens / 3;
    const RandomKey random{.seed = 7};
    for (std::int64_t i = 0; i < made_up_tokens * config_.experts; ++i) {
      logits.push_back(normal(random, static_cast<std::uint64_t>(i)));
    }
    for (std::int64_t t = 0; t < made_up_tokens; ++t) {
      valid.push_back(t % 5 == 4 ? 0 : 1);
      index_.push_back(1000 + 7 * t);
      token_.push_back(
          static_cast<std::int32_t>(below(random, static_cast<std::uint64_t>(9999 + t), made_up_vocabulary)));
    }
    for (std::int64_t e = 0; e < config_.experts; ++e) {
      state_.push_back(0.05f * normal(random, static_cast<std::uint64_t>(88888 + e)));
    }
  }

  const GateConfig& config() const { return config_; }
  std::int64_t groups() const { return made_up_tokens / config_.group_tokens; }

  struct Outcome {
    std::vector<std::int32_t> expert, chosen;
    std::vector<float> weight, lse;
    std::vector<double> share;
    double balance = 0, z = 0;
    bool operator==(const Outcome& o) const {
      return expert == o.expert && chosen == o.chosen && same(weight, o.weight) && same(lse, o.lse) &&
             share == o.share && balance == o.balance && z == o.z;
    }
    static bool same(const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    }
  };

  // before: what the outputs hold.
  Outcome choose(const std::vector<float>& x, double before = 0) const {
    const Made m = made(before);
    const GateInput in = input(x);
    gate_.choose(m.choice, in, config_, *stream_);
    const Tensor sums = device_->empty(DType::f64, {2});
    stream_->fill(sums, 0);
    gate_.losses(sums.slice(0, {1}), sums.slice(1, {1}), m.choice, in, config_, *stream_);
    Outcome o{host<std::int32_t>(m.choice.expert), host<std::int32_t>(m.choice.chosen), host<float>(m.choice.weight),
              host<float>(m.choice.lse), host<double>(m.choice.share)};
    const std::vector<double> losses = host<double>(sums);
    o.balance = losses[0];
    o.z = losses[1];
    return o;
  }

  std::vector<float> backward(const std::vector<float>& dweight, double before = 0) const {
    const Made m = made(before);
    const GateInput in = input(logits);
    gate_.choose(m.choice, in, config_, *stream_);
    const Tensor dlogits = device_->empty(DType::f32, {made_up_tokens, config_.experts});
    stream_->fill(dlogits, before);
    const GateChoice kept{m.choice.expert, {}, m.choice.lse, m.choice.chosen, {}};
    gate_.backward(dlogits, put(DType::f32, {made_up_tokens, config_.top_k}, dweight), kept, in, aux, z, config_,
                   *stream_);
    return host<float>(dlogits);
  }

  bool keeps_state() const { return gate_.keeps_state(settings_.moe); }
  std::vector<float> updated(const std::vector<std::int64_t>& load, float factor) const {
    const Tensor state = put(DType::f32, {config_.experts}, state_);
    gate_.update({.state = state,
                  .loads = put(DType::i64, {1, 2, config_.experts}, load),
                  .tokens = made_up_tokens,
                  .factor = put(DType::f32, {1}, std::vector<float>{factor})},
                 settings_, *stream_);
    return host<float>(state);
  }

  // Nothing is read: what a dry run does.
  void enqueue() const {
    const Made m = made(0);
    gate_.choose(m.choice, input(logits), config_, *stream_);
    const Tensor sums = device_->empty(DType::f64, {2}),
                 dlogits = device_->empty(DType::f32, {made_up_tokens, config_.experts});
    gate_.losses(sums.slice(0, {1}), sums.slice(1, {1}), m.choice, input(logits), config_, *stream_);
    gate_.backward(dlogits, device_->empty(DType::f32, {made_up_tokens, config_.top_k}), m.choice, input(logits), aux,
                   z, config_, *stream_);
    updated(std::vector<std::int64_t>(2 * config_.experts, 1), 1);
  }

  std::vector<float> logits;
  std::vector<std::uint8_t> valid;
  const std::vector<float>& state() const { return state_; }

 private:
  struct Made {
    GateChoice choice;
  };
  Made made(double before) const {
    const std::int64_t e = config_.experts, k = config_.top_k;
    const GateChoice choice{device_->empty(DType::i32, {made_up_tokens, k}),
                            device_->empty(DType::f32, {made_up_tokens, k}),
                            device_->empty(DType::f32, {made_up_tokens}), device_->empty(DType::i32, {groups(), e}),
                            device_->empty(DType::f64, {groups(), e})};
    for (const Tensor* t : {&choice.expert, &choice.weight, &choice.lse, &choice.chosen, &choice.share}) {
      stream_->fill(*t, before);
    }
    return {choice};
  }
  GateInput input(const std::vector<float>& x) const {
    return {.logits = put(DType::f32, {made_up_tokens, config_.experts}, x),
            .valid = put(DType::u8, {made_up_tokens}, valid),
            .index = put(DType::i64, {made_up_tokens}, index_),
            .token = gate_.reads_tokens(settings_.moe) ? put(DType::i32, {made_up_tokens}, token_) : Tensor(),
            .state = keeps_state() ? put(DType::f32, {config_.experts}, state_) : Tensor(),
            .key = {.seed = 5, .purpose = Purpose::second_expert, .site = 1, .step = 2},
            .moe = &settings_.moe};
  }
  template <class T>
  Tensor put(DType dtype, Shape shape, const std::vector<T>& values) const {
    const Tensor t = device_->empty(dtype, shape);
    stream_->upload(t, values.data());
    return t;
  }
  template <class T>
  std::vector<T> host(const Tensor& t) const {
    std::vector<T> values(t.elements());
    stream_->download(values.data(), t);
    return values;
  }

  const Settings& settings_;
  const Gate& gate_;
  GateConfig config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::int64_t> index_;
  std::vector<std::int32_t> token_;
  std::vector<float> state_;
};

void check_choices(const GateRig& rig, const GateRig::Outcome& o) {
  const GateConfig& c = rig.config();
  const auto k_count = static_cast<std::size_t>(c.top_k), experts = static_cast<std::size_t>(c.experts);
  std::vector<std::int32_t> counted(o.chosen.size(), 0);
  std::vector<double> routed(rig.groups(), 0);
  for (std::size_t t = 0; t < static_cast<std::size_t>(made_up_tokens); ++t) {
    const bool is_valid = rig.valid[t] != 0;
    const std::size_t group = t / static_cast<std::size_t>(c.group_tokens);
    std::set<std::int32_t> met;
    for (std::size_t k = 0; k < k_count; ++k) {
      const std::int32_t e = o.expert[t * k_count + k];
      const float w = o.weight[t * k_count + k];
      expect(e >= -1 && e < c.experts, "choice {} of token {} is expert {} of {}", k, t, e, c.experts);
      expect(is_valid || e == -1, "token {} is padding, and its choice {} is expert {}", t, k, e);
      expect(e == -1 || met.insert(e).second, "token {} has expert {} twice", t, e);
      expect(std::isfinite(w) && (e != -1 || w == 0), "choice {} of token {}, expert {}, has the weight {}", k, t, e,
             w);
      if (e >= 0 && static_cast<std::int64_t>(k) < (c.counted_choices == 0 ? c.top_k : c.counted_choices)) {
        ++counted[group * experts + static_cast<std::size_t>(e)];
      }
    }
    double sum = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      sum += std::exp(static_cast<double>(rig.logits[t * experts + e]));
    }
    const double lse = is_valid ? std::log(sum) : 0;
    expect(std::abs(static_cast<double>(o.lse[t]) - lse) <= 1e-5 * (1 + std::abs(lse)),
           "lse of token {} is {}, the logsumexp of its logits {}", t, o.lse[t], lse);
    routed[group] += is_valid ? 1 : 0;
  }
  for (std::size_t i = 0; i < counted.size() && !c.second_by_chance; ++i) {
    expect(o.chosen[i] == counted[i], "chosen of expert {} in group {} is {}, its choices are {}", i % experts,
           i / experts, o.chosen[i], counted[i]);
  }
  for (std::size_t g = 0; g < routed.size(); ++g) {
    const auto first = o.share.begin() + static_cast<std::ptrdiff_t>(g * experts);
    const double sum = std::accumulate(first, first + static_cast<std::ptrdiff_t>(experts), 0.0);
    expect(std::abs(sum - routed[g]) <= 1e-4 * (1 + routed[g]), "the shares of group {} sum to {}, it has {} tokens", g,
           sum, routed[g]);
  }
}

// Central differences of sum(dweight * weight) + aux * balance + z * z, where they change no choice.
void check_gradient(const GateRig& rig, const GateRig::Outcome& base) {
  const RandomKey random{.seed = 11};
  std::vector<float> dweight(base.weight.size());
  for (std::size_t i = 0; i < dweight.size(); ++i) {
    dweight[i] = base.expert[i] < 0 ? 0.0f : normal(random, i);
  }
  const std::vector<float> got = rig.backward(dweight);
  expect(GateRig::Outcome::same(got, rig.backward(dweight, 3)), "backward leaves elements of dlogits unwritten");
  const auto value = [&](const GateRig::Outcome& o) {
    double sum = static_cast<double>(aux) * o.balance + static_cast<double>(z) * o.z;
    for (std::size_t i = 0; i < dweight.size(); ++i) {
      sum += static_cast<double>(dweight[i]) * static_cast<double>(o.weight[i]);
    }
    return sum;
  };
  const std::size_t experts = static_cast<std::size_t>(rig.config().experts);
  constexpr float step = 1.0f / 64;
  std::size_t compared = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::size_t t = i / experts;
    if (rig.valid[t] == 0) {
      expect(got[i] == 0, "token {} is padding, and its logit {} has the gradient {}", t, i % experts, got[i]);
      continue;
    }
    std::vector<float> more = rig.logits, less = rig.logits;
    more[i] += step;
    less[i] -= step;
    const GateRig::Outcome above = rig.choose(more), below = rig.choose(less);
    if (above.expert != base.expert || below.expert != base.expert) {
      continue;
    }
    ++compared;
    const double expected =
        (value(above) - value(below)) / (static_cast<double>(more[i]) - static_cast<double>(less[i]));
    expect(std::abs(static_cast<double>(got[i]) - expected) <= 2e-3 * (1 + std::abs(expected)),
           "backward gives {} for logit {} of token {}, differences of its own weights and losses {}", got[i],
           i % experts, t, expected);
  }
  expect(compared > 0, "its choices change with every logit: backward was compared with nothing");
}

void check_state(const GateRig& rig, const GateRig& other) {
  const auto experts = static_cast<std::size_t>(rig.config().experts);
  std::vector<std::int64_t> load(2 * experts);
  for (std::size_t i = 0; i < load.size(); ++i) {
    load[i] = static_cast<std::int64_t>((i * 7) % 13);
  }
  const std::vector<float> once = rig.updated(load, 1);
  expect(GateRig::Outcome::same(once, rig.updated(load, 1)), "the same state and load update to different states");
  expect(GateRig::Outcome::same(once, other.updated(load, 1)), "another rank's state is updated differently");
  expect(GateRig::Outcome::same(rig.updated(load, NAN), rig.state()),
         "a step that is not finite (*factor is NaN) changes the state");
}

}  // namespace

Finding check_gate(const Settings& settings) {
  const std::string check = "gate " + settings.moe.router;
  try {
    const GateRig rig(settings, make_guarded_device(1)), other(settings, make_guarded_device(1));
    const GateRig::Outcome base = rig.choose(rig.logits);
    expect(base == rig.choose(rig.logits), "the same inputs give different choices");
    expect(base == rig.choose(rig.logits, 3), "choose leaves elements of its outputs unwritten");
    check_choices(rig, base);
    check_gradient(rig, base);
    if (rig.keeps_state()) {
      check_state(rig, other);
    }
    GateRig(settings, std::make_unique<MetaDevice>()).enqueue();
    return {check, Outcome::ok, rig.keeps_state() ? "choices, gradient, state" : "choices, gradient"};
  } catch (const Wrong& wrong) {
    return {check, Outcome::failed, wrong.what()};
  }
}

}  // namespace orthant
