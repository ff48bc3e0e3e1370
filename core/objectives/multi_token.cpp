#include "core/objectives/multi_token.h"

#include <orthant/settings.h>

#include <algorithm>

#include "core/data/tokens_ahead.h"
#include "core/objectives/cross_entropy.h"
#include "core/objectives/kinds.h"

namespace orthant {
namespace {

std::vector<std::string> one_a_depth(const Settings& s, const char* what) {
  std::vector<std::string> names;
  for (std::int64_t depth = 1; depth <= s.model.mtp_depth; ++depth) {
    names.push_back(fmt::format("{} of depth {}", what, depth));
  }
  return names;
}

class MultiToken final : public Objective {
 public:
  std::vector<Refusal> refusals(const Settings&) const override {
    return {{{"train.objective"},
             fmt::format("[train] objective: \"{}\" stands beside the objective of the head", multi_token_name),
             "write [model] mtp_depth = 1, and leave objective out"}};
  }
  std::vector<std::string> sums(const Settings& s) const override { return one_a_depth(s, "loss"); }
  std::vector<std::string> counts(const Settings& s) const override { return one_a_depth(s, "tokens"); }

  void count(const HostBatch& whole, const HostBatch&, const Plan& plan,
             std::span<std::int64_t> counts) const override {
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const HostBatch held = held_rows(tokens_ahead(whole, static_cast<std::int64_t>(k) + 1), plan);
      counts[k] += std::count_if(held.label.begin(), held.label.end(), [](std::int32_t label) { return label >= 0; });
    }
  }

  std::shared_ptr<const ObjectiveBatch> upload(const HostBatch& whole, const Plan& plan, Stream& s) const override {
    auto ahead = std::make_shared<TokensAhead>();
    const auto put = [&](const std::vector<std::int32_t>& values) {
      Tensor t = plan.device().empty(DType::i32, {static_cast<std::int64_t>(values.size())});
      s.upload(t, values.data());
      return t;
    };
    for (std::int64_t depth = 1; depth <= plan.settings().model.mtp_depth; ++depth) {
      const HostBatch held = held_rows(tokens_ahead(whole, depth), plan);
      ahead->depths.push_back({.token = put(held.token), .label = put(held.label)});
    }
    return ahead;
  }

  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    const std::size_t depth = static_cast<std::size_t>(in.depth);
    cross_entropy({.label = static_cast<const TokensAhead&>(*in.own).depths.at(depth).label,
                   .sum = in.sums.slice(in.depth, {1}),
                   .scale = ctx.training ? scale(ctx.settings(), in.counts, depth) : 1},
                  rows, ctx);
  }

  ObjectiveReport report(const Settings&, std::span<const double> sums, std::span<const std::int64_t> counts,
                         bool) const override {
    double loss = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      loss += sums[k] / static_cast<double>(std::max<std::int64_t>(counts[k], 1));
    }
    loss /= static_cast<double>(counts.size());
    return {.loss = loss, .figures = {{"mtp_loss", loss}}};
  }

  std::string told(const std::map<std::string, double>& figures, bool training) const override {
    return training ? fmt::format("mtp {:.4f}", figures.at("mtp_loss")) : "";
  }

 private:
  // What the gradient of a depth's loss is multiplied by: its weight / tokens of the global batch that it counts.
  static float scale(const Settings& s, std::span<const std::int64_t> counts, std::size_t depth) {
    const double tokens = static_cast<double>(std::max<std::int64_t>(counts[depth], 1));
    return static_cast<float>(s.train.mtp_weight / static_cast<double>(counts.size()) / tokens);
  }
};

}  // namespace

std::shared_ptr<const Objective> make_multi_token() {
  return std::make_shared<MultiToken>();
}

}  // namespace orthant
