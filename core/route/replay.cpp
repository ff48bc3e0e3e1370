#include "core/route/replay.h"

#include <orthant/device.h>
#include <orthant/gate.h>

#include <algorithm>
#include <cmath>
#include <numeric>

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

class Replayer {
 public:
  Replayer(const RecordedStep& step, const Settings& settings)
      : step_(step),
        settings_(settings),
        gate_(gate_of(settings)),
        config_(gate_.config(settings)),
        device_(make_cpu_device(1)),
        stream_(device_->make_main_stream()) {
    require_enough(step, settings, config_);
  }

  Decisions decide(const RecordedTokens& of, const RecordedLayer& layer) {
    const auto tokens = static_cast<std::int64_t>(of.index.size());
    const std::int64_t experts = config_.experts, k = config_.top_k, groups = tokens / config_.group_tokens;
    require(tokens % config_.group_tokens == 0, "{} recorded tokens are not whole groups of {}", tokens,
            config_.group_tokens);
    const GateInput from = input(of, layer);
    const GateChoice choice{.expert = device_->empty(DType::i32, {tokens, k}),
                            .weight = device_->empty(DType::f32, {tokens, k}),
                            .lse = device_->empty(DType::f32, {tokens}),
                            .chosen = device_->empty(DType::i32, {groups, experts}),
                            .share = device_->empty(DType::f64, {groups, experts})};
    gate_.choose(choice, from, config_, *stream_);
    const Tensor row = device_->empty(DType::i32, {tokens, k}), source = device_->empty(DType::i32, {tokens * k, 1}),
                 kept = device_->empty(DType::i32, {experts}), dropped = device_->empty(DType::i32, {experts}),
                 offset = device_->empty(DType::i32, {experts + 1});
    stream_->dispatch_plan(row, source, kept, dropped, offset, choice.expert, choice.weight, from.valid, config_);
    Decisions made{
        .layer = layer.layer, .top_k = k, .expert = host(choice.expert), .kept = {}, .load = {}, .computed = {}};
    for (const std::int32_t at : host(row)) {
      made.kept.push_back(at >= 0 ? 1 : 0);
    }
    count(made, host(kept), host(dropped), std::count(of.valid.begin(), of.valid.end(), 1));
    return made;
  }

 private:
  template <class T>
  Tensor tensor(DType dtype, Shape shape, const std::vector<T>& values) {
    Tensor t = device_->empty(dtype, shape);
    stream_->upload(t, values.data());
    return t;
  }
  std::vector<std::int32_t> host(const Tensor& t) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(t.elements()));
    stream_->download(values.data(), t);
    return values;
  }

  GateInput input(const RecordedTokens& of, const RecordedLayer& layer) {
    const auto tokens = static_cast<std::int64_t>(of.index.size());
    GateInput from;
    from.logits =
        tensor(DType::f32, {tokens, config_.experts}, whole_logits(layer, config_.experts, step_.kept_logits));
    from.valid = tensor(DType::u8, {tokens}, of.valid);
    from.index = tensor(DType::i64, {tokens}, of.index);
    if (gate_.reads_tokens(settings_.moe)) {
      require(!of.token.empty(), "the recording has no ids of tokens, which router \"{}\" reads", settings_.moe.router);
      from.token = tensor(DType::i32, {tokens}, of.token);
    }
    if (gate_.keeps_state(settings_.moe)) {
      const std::vector<float> zero(static_cast<std::size_t>(config_.experts), 0.0f);
      from.state = tensor(DType::f32, {config_.experts}, layer.state.empty() ? zero : layer.state);
    }
    from.key = {settings_.run.seed, Purpose::second_expert, static_cast<std::uint32_t>(layer.layer),
                static_cast<std::uint32_t>(step_.step - 1)};
    return from;
  }

  void count(Decisions& made, const std::vector<std::int32_t>& kept, const std::vector<std::int32_t>& dropped,
             std::int64_t valid) const {
    made.computed.assign(kept.begin(), kept.end());
    std::int64_t all = 0;
    for (std::size_t e = 0; e < kept.size(); ++e) {
      made.load.push_back(std::int64_t{kept[e]} + dropped[e]);
      made.dropped_by_capacity += dropped[e];
      all += made.load[e];
    }
    made.choices = config_.second_by_chance ? valid * config_.top_k : all;
    made.dropped_by_chance = made.choices - all;
  }

  const RecordedStep& step_;
  const Settings& settings_;
  const Gate& gate_;
  const GateConfig config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace

std::vector<Decisions> replay(const RecordedStep& step, const Settings& settings) {
  Replayer replayer(step, settings);
  std::vector<Decisions> all;
  for (const RecordedTokens& stage : step.of_stages) {
    for (const RecordedLayer& layer : stage.layers) {
      all.push_back(replayer.decide(stage, layer));
    }
  }
  std::sort(all.begin(), all.end(), [](const Decisions& a, const Decisions& b) { return a.layer < b.layer; });
  return all;
}

}  // namespace orthant
