#include "apps/route/gate_pass.h"

#include <algorithm>
#include <cmath>

namespace orthant {
namespace {

// f32 [T, E]. Of experts whose logits were not kept nothing but the sum of their exp is known: each gets an equal part
// of it, which is at most that of the last one that was kept. The order and the logsumexp stay.
std::vector<float> whole_logits(const RecordedLayer& layer, std::int64_t experts, std::int64_t kept) {
  if (kept == experts) {
    return layer.logits;
  }
  std::vector<float> whole(layer.lse.size() * static_cast<std::size_t>(experts));
  for (std::size_t t = 0; t < layer.lse.size(); ++t) {
    const std::size_t first = t * static_cast<std::size_t>(kept);
    double rest = 1;
    for (std::size_t m = first; m < first + static_cast<std::size_t>(kept); ++m) {
      rest -= std::exp(static_cast<double>(layer.logits[m]) - layer.lse[t]);
    }
    const float least = layer.logits[first + static_cast<std::size_t>(kept) - 1];
    const double each = std::log(std::max(rest, 1e-30) / static_cast<double>(experts - kept)) + layer.lse[t];
    float* const row = whole.data() + t * static_cast<std::size_t>(experts);
    std::fill_n(row, experts, std::min(static_cast<float>(each), std::nextafter(least, -INFINITY)));
    for (std::size_t m = first; m < first + static_cast<std::size_t>(kept); ++m) {
      row[layer.expert[m]] = layer.logits[m];
    }
  }
  return whole;
}

void require_enough(const RecordedStep& step, const Settings& settings, const GateConfig& config) {
  for (const RecordedTokens& tokens : step.of_stages) {
    for (const RecordedLayer& layer : tokens.layers) {
      const bool all_kept = layer.expert.empty();
      if (all_kept ? step.kept_logits != settings.moe.experts : step.kept_logits >= settings.moe.experts) {
        throw ConfigError(
            fmt::format("the recording has {} logits of a token, which are not those of {} experts: their "
                        "number (moe.experts) stays the run's",
                        step.kept_logits, settings.moe.experts));
      }
    }
  }
  const bool all = step.kept_logits == settings.moe.experts, every = needs_all_logits(settings);
  if (!all && (every || config.top_k > step.kept_logits)) {
    throw ConfigError(fmt::format(
        "the recording has {} of each token's {} logits, router \"{}\" needs {}: record again with --set "
        "run.record_logits={}",
        step.kept_logits, settings.moe.experts, settings.moe.router,
        every ? "all of them" : fmt::format("{}", config.top_k), every ? settings.moe.experts : config.top_k));
  }
}

template <class T>
Tensor uploaded(Stream& s, DType dtype, Shape shape, const std::vector<T>& values) {
  Tensor t = s.device().empty(dtype, shape);
  s.upload(t, values.data());
  return t;
}

}  // namespace

GatePass::GatePass(const RecordedStep& step, const Settings& settings, Stream& s)
    : step_(step), settings_(settings), gate_(gate_of(settings)), config_(gate_.config(settings)), s_(s) {
  require_enough(step, settings, config_);
}

void GatePass::load(const RecordedTokens& of, const RecordedLayer& layer) {
  const auto tokens = static_cast<std::int64_t>(of.index.size());
  const std::int64_t experts = config_.experts, k = config_.top_k, groups = tokens / config_.group_tokens;
  require(tokens % config_.group_tokens == 0, "{} recorded tokens are not whole groups of {}", tokens,
          config_.group_tokens);
  from_ = {};
  from_.moe = &settings_.moe;
  from_.logits = uploaded(s_, DType::f32, {tokens, experts}, whole_logits(layer, experts, step_.kept_logits));
  from_.valid = uploaded(s_, DType::u8, {tokens}, of.valid);
  from_.index = uploaded(s_, DType::i64, {tokens}, of.index);
  if (gate_.reads_tokens(settings_.moe)) {
    require(!of.token.empty(), "the recording has no ids of tokens, which router \"{}\" reads", settings_.moe.router);
    from_.token = uploaded(s_, DType::i32, {tokens}, of.token);
  }
  if (gate_.keeps_state(settings_.moe)) {
    const std::vector<float> zero(static_cast<std::size_t>(experts), 0.0f);
    from_.state = uploaded(s_, DType::f32, {experts}, layer.state.empty() ? zero : layer.state);
  }
  from_.key = {settings_.run.seed, Purpose::second_expert, static_cast<std::uint32_t>(layer.layer),
               static_cast<std::uint32_t>(step_.step - 1)};
  Device& device = s_.device();
  choice_ = {.expert = device.empty(DType::i32, {tokens, k}),
             .weight = device.empty(DType::f32, {tokens, k}),
             .lse = device.empty(DType::f32, {tokens}),
             .chosen = device.empty(DType::i32, {groups, experts}),
             .share = device.empty(DType::f64, {groups, experts})};
  row_ = device.empty(DType::i32, {tokens, k});
  source_ = device.empty(DType::i32, {tokens * k, 1});
  offset_ = device.empty(DType::i32, {experts + 1});
  kept_ = device.empty(DType::i32, {experts});
  dropped_ = device.empty(DType::i32, {experts});
  dlogits_ = device.empty(DType::f32, {tokens, experts});
  dweight_ = device.empty(DType::f32, {tokens, k});
  losses_ = device.empty(DType::f64, {2, 1});
  s_.fill(dweight_, 0.01);
  s_.fill(losses_, 0);
}

void GatePass::decide() {
  gate_.choose(choice_, from_, config_, s_);
  s_.dispatch_plan(row_, source_, kept_, dropped_, offset_, choice_.expert, choice_.weight, from_.valid, config_);
}

void GatePass::learn() {
  gate_.losses(losses_.rows(0, 1).view({1}), losses_.rows(1, 1).view({1}), choice_, from_, config_, s_);
  const GateChoice made{
      .expert = choice_.expert, .weight = {}, .lse = choice_.lse, .chosen = choice_.chosen, .share = {}};
  gate_.backward(dlogits_, dweight_, made, from_, static_cast<float>(settings_.moe.aux_loss),
                 static_cast<float>(settings_.moe.z_loss), config_, s_);
}

}  // namespace orthant
