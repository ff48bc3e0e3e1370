// The loss of pairs of answers (data.source = "pairs"): docs/guides/preference.md.
//
// What the loss asks of a token is one number for all tokens of an answer, and known only when both answers of its pair
// are. So the objective goes over its rows twice: first the log-probabilities of the model and of its reference are
// summed, and then each token's gradient of the cross entropy is multiplied by that number. Sums and rule are the
// host's: a few numbers a sequence.
#include "core/objectives/pairs.h"

#include <orthant/settings.h>
#include <orthant/sizes.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/config/rules.h"
#include "core/objectives/kinds.h"
#include "core/objectives/preference_rule.h"

namespace orthant {
namespace {

// Of each token the number of the answer that it counts in, or -1. The pair of sequence s has the answers 2 s, which is
// the chosen one, and 2 s + 1.
struct PairBatch final : ObjectiveBatch {
  std::vector<std::int32_t> answer;
};

// A pair's sequence has two documents, the chosen answer first, each with the prompt before it.
std::vector<std::int32_t> answers_of(const HostBatch& held) {
  std::vector<std::int32_t> answers(held.label.size(), -1);
  for (std::size_t t = 0; t < answers.size(); ++t) {
    const std::int32_t sequence = static_cast<std::int32_t>(static_cast<std::int64_t>(t) / held.positions);
    answers[t] = held.label[t] < 0 ? -1 : 2 * sequence + (held.first[t] == 0 ? 0 : 1);
  }
  return answers;
}

// One of the ranks that hold parts of the same sequences.
bool counts_sequences(const Plan& plan) {
  const std::vector<AxisId> axes = plan.axes_of(Dim::position, Region::embedding);
  return std::all_of(axes.begin(), axes.end(), [&](AxisId axis) { return plan.mesh().coordinate(axis) == 0; });
}

PreferenceKeys preference_of(const Settings& s) {
  return read_keys<PreferenceKeys>(kind_values(s, "preference"));
}

// The micro-batch of one run.
class PairHead {
 public:
  PairHead(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx)
      : in_(in), rows_(rows), ctx_(ctx), answer_(static_cast<const PairBatch&>(*in.own).answer) {}

  void run();

 private:
  std::int64_t count_from(std::int64_t begin) const { return std::min(rows_.chunk(), rows_.tokens() - begin); }
  void take_loss(const Tensor& loss, const Tensor& logits, std::int64_t begin) {
    const std::int64_t count = logits.dim(0);
    rows_.cross_entropy(loss.rows(begin, count), logits, ctx_.batch.label.rows(begin, count), 1);
  }
  // Of each answer of the micro-batch, over all parts of its sequence. loss, reference f32 [T]: -log p.
  std::vector<AnswerSums> answers(const Tensor& loss, const Tensor& reference);
  // Of each token, f32 [T, 1], what its gradient of -log p is to be multiplied by; undefined outside of training. The
  // host waits for the device.
  Tensor weights(const Tensor& loss, const Tensor& reference);

  const ObjectiveInput& in_;
  OutputRows& rows_;
  const StepContext& ctx_;
  const std::vector<std::int32_t>& answer_;
};

std::vector<AnswerSums> PairHead::answers(const Tensor& loss, const Tensor& reference) {
  require(answer_.size() == static_cast<std::size_t>(loss.dim(0)),
          "internal error: a batch of {} tokens says of {} which answer they count in", loss.dim(0), answer_.size());
  const Tensor wide = ctx_.device().empty(DType::f64, {2, loss.dim(0)});
  ctx_.stream.cast(wide.rows(0, 1), loss);
  ctx_.stream.cast(wide.rows(1, 1), reference);
  std::vector<double> of_both(2 * answer_.size());
  ctx_.stream.download(of_both.data(), wide);
  std::vector<AnswerSums> sums(static_cast<std::size_t>(2 * ctx_.batch.sequences));
  for (std::size_t t = 0; t < answer_.size(); ++t) {
    if (answer_[t] >= 0) {
      AnswerSums& of = sums[static_cast<std::size_t>(answer_[t])];
      of.model -= of_both[t];
      of.reference -= of_both[answer_.size() + t];
      of.tokens += 1;
    }
  }
  static_assert(sizeof(AnswerSums) == 3 * sizeof(double));
  const Tensor all = ctx_.device().empty(DType::f64, {static_cast<std::int64_t>(3 * sums.size())});
  ctx_.stream.upload(all, sums.data());
  rows_.sum_over_sequences(all);
  ctx_.stream.download(sums.data(), all);
  return sums;
}

Tensor PairHead::weights(const Tensor& loss, const Tensor& reference) {
  const PreferenceKeys how = preference_of(ctx_.settings());
  const std::vector<AnswerSums> sums = answers(loss, reference);
  const std::int64_t chosen_tokens = ctx_.training ? in_.counts[1] : 0;
  const float nll_scale =
      chosen_tokens == 0 ? 0.0f : static_cast<float>(how.nll_weight / static_cast<double>(chosen_tokens));
  std::vector<double> slope(sums.size());
  std::array<double, pair_sums> found{};
  const auto add = [&](PairSum to, double value) { found[static_cast<std::size_t>(to)] += value; };
  for (std::size_t a = 0; a < sums.size(); a += 2) {
    const AnswerSums &chosen = sums[a], &rejected = sums[a + 1];
    if (chosen.tokens == 0 || rejected.tokens == 0) {  // a sequence of padding
      continue;
    }
    const JudgedPair pair = judge(chosen, rejected, how);
    add(PairSum::loss, pair.loss);
    add(PairSum::right, pair.chosen.reward > pair.rejected.reward ? 1 : 0);
    add(PairSum::reward_chosen, pair.chosen.reward);
    add(PairSum::reward_rejected, pair.rejected.reward);
    add(PairSum::logp_chosen, pair.chosen.logp);
    add(PairSum::logp_rejected, pair.rejected.logp);
    add(PairSum::nll, -chosen.model);
    add(PairSum::reference, chosen.reference + rejected.reference);
    const double scale = static_cast<double>(ctx_.loss_scale);
    slope[a] = static_cast<double>(nll_scale) - scale * pair.chosen.slope;
    slope[a + 1] = -scale * pair.rejected.slope;
  }
  // The ranks that hold parts of these sequences have all found the same: one of them counts it.
  if (ctx_.plan.counts_tokens(Region::head, true)) {
    const Tensor counted = ctx_.device().empty(DType::f64, {pair_sums});
    ctx_.stream.upload(counted, found.data());
    for (std::int64_t i = 0; i < pair_sums; ++i) {
      ctx_.stream.sum(in_.sums.slice(i, {1}), counted.slice(i, {1}));
    }
  }
  if (!ctx_.training) {
    return {};
  }
  std::vector<float> weight;
  weight.reserve(answer_.size());
  for (const std::int32_t answer : answer_) {
    weight.push_back(answer < 0 ? 0 : static_cast<float>(slope[static_cast<std::size_t>(answer)]));
  }
  const Tensor weights = ctx_.device().empty(DType::f32, {static_cast<std::int64_t>(weight.size()), 1});
  ctx_.stream.upload(weights, weight.data());
  return weights;
}

void PairHead::run() {
  Device& device = ctx_.device();
  Stream& s = ctx_.stream;
  const std::int64_t tokens = rows_.tokens(), chunk = rows_.chunk();
  const Tensor losses = device.empty(DType::f32, {tokens}), of_reference = device.empty(DType::f32, {tokens});
  Tensor gradients;  // of the last chunk, by the cross entropy of each of its tokens
  in_.teacher->begin(ctx_.micro_batch);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    gradients = {};  // before others take their memory
    take_loss(of_reference, in_.teacher->logits(begin, count_from(begin)), begin);
    gradients = rows_.logits(begin, count_from(begin));
    take_loss(losses, gradients, begin);
  }
  in_.teacher->end();
  const Tensor weights = this->weights(losses, of_reference);
  if (!ctx_.training) {
    return;
  }
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(std::min(chunk, tokens)));
  std::iota(numbers.begin(), numbers.end(), 0);
  const Tensor row = device.empty(DType::i32, {static_cast<std::int64_t>(numbers.size()), 1});
  s.upload(row, numbers.data());
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = count_from(begin);
    if (tokens > chunk) {  // they were not kept
      gradients = {};
      gradients = rows_.logits(begin, count);
      take_loss(losses, gradients, begin);
    }
    const Tensor weighted = device.empty(DType::f32, gradients.shape());
    s.combine(weighted, gradients, row.rows(0, count), weights.rows(begin, count), false);
    rows_.learn(begin, weighted);
  }
}

class Pairs final : public Objective {
 public:
  std::vector<KindKey> keys() const override { return PreferenceKeys::keys().declared(); }
  bool implied(const Settings& s) const override { return s.data.source == "pairs"; }
  std::vector<Refusal> refusals(const Settings& s) const override;
  ReferenceModel reference(const Settings& s) const override {
    const std::string named = preference_of(s).reference;
    const bool own = !named.empty();
    return {own ? named : s.train.from, own ? "preference.reference" : "train.from",
            own ? "[preference] reference" : "[train] from, the reference", "preference.reference", true};
  }
  std::string unit(const Settings&) const override { return "nats per pair"; }
  bool over_sequences(const Settings&) const override { return true; }
  std::vector<std::string> sums(const Settings&) const override {
    return {"loss", "right", "reward_chosen", "reward_rejected", "logp_chosen", "logp_rejected", "nll", "reference"};
  }
  std::vector<std::string> counts(const Settings&) const override { return {"pairs", "tokens of chosen answers"}; }
  void count(const HostBatch& whole, const HostBatch& held, const Plan& plan,
             std::span<std::int64_t> counts) const override;
  std::shared_ptr<const ObjectiveBatch> upload(const HostBatch& whole, const Plan& plan, Stream&) const override {
    auto batch = std::make_shared<PairBatch>();
    batch->answer = answers_of(held_rows(whole, plan));
    return batch;
  }
  void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const override {
    PairHead(in, rows, ctx).run();
  }
  ObjectiveReport report(const Settings& s, std::span<const double> sums, std::span<const std::int64_t> counts,
                         bool training) const override;
  std::string told(const std::map<std::string, double>& figures, bool training) const override {
    const std::string right = fmt::format("preferred {:.1f}%", 100 * figures.at("rewards/accuracies"));
    return training ? fmt::format("{}  margin {:.3f}", right, figures.at("rewards/margins")) : right;
  }
};

std::vector<Refusal> Pairs::refusals(const Settings& s) const {
  const PreferenceKeys p = preference_of(s);
  Refusals refusals;
  // A configuration that a run keeps may name the objective, and commands that read it put "none" for its data.
  refusals.expect(
      implied(s) || s.data.source == "synthetic" || s.data.source == "none", {"train.objective", "data.source"},
      fmt::format("[train] objective: \"pairs\" compares pairs of answers, and data.source = \"{}\" has none",
                  s.data.source),
      "write source = \"pairs\", or leave objective out");
  refusals.expect(!p.reference.empty() || !s.train.from.empty(), {"preference.reference", "train.from"},
                  "[preference] reference: there is no model to compare with",
                  "write [train] from = the run whose weights this one begins with, or name another run as reference");
  refusals.expect(!s.catalogue->get<Objective>("distil").implied(s), {"distil.teacher"},
                  "[distil] teacher: pairs of answers have a reference, and no teacher",
                  "leave out [distil], or train on another data.source");
  refusals.expect(positive_float(p.beta), {"preference.beta"},
                  fmt::format("[preference] beta: {} is not above 0", p.beta), "write a number such as 0.1");
  refusals.expect(p.label_smoothing < 0.5, {"preference.label_smoothing"},
                  fmt::format("[preference] label_smoothing: with {} neither answer is preferred", p.label_smoothing),
                  "write a number of at least 0 and below 0.5");
  refusals.expect(p.label_smoothing == 0 || p.loss == PreferenceLoss::sigmoid,
                  {"preference.label_smoothing", "preference.loss"}, "[preference] label_smoothing: \"ipo\" knows none",
                  "write loss = \"sigmoid\", or leave label_smoothing out");
  refusals.expect(s.model.dropout == 0, {"model.dropout"},
                  "[model] dropout: the reference has none, and would be compared with noise", "write dropout = 0");
  refusals.expect(s.moe.experts == 0 || s.moe.jitter == 0, {"moe.jitter"},
                  "[moe] jitter: the reference has none, and would be compared with noise", "write jitter = 0");
  refusals.expect(s.model.mtp_depth == 0, {"model.mtp_depth"},
                  "[model] mtp_depth: tokens further ahead have no part in the loss of pairs", "write mtp_depth = 0");
  refusals.expect(s.data.sequence_length >= 4, {"data.sequence_length"},
                  fmt::format("[data] sequence_length: two answers do not fit into {} tokens", s.data.sequence_length),
                  "write room for a prompt and its two answers, with the prompt before each");
  refusals.expect(s.data.documents == Documents::packed, {"data.documents"},
                  "[data] documents: a sequence has the two answers of a pair, each with its prompt",
                  "leave documents out, or write \"packed\"");
  refusals.expect(s.moe.experts == 0 || s.moe.capacity_factor == 0 || group_tokens_of(s) <= s.data.sequence_length,
                  {"moe.group_tokens", "moe.capacity_factor"},
                  "[moe] group_tokens: with a capacity, what an answer is worth would depend on other pairs",
                  "leave group_tokens out, so that a pair is a group by itself, or write capacity_factor = 0");
  return refusals.found;
}

void Pairs::count(const HostBatch& whole, const HostBatch& held, const Plan& plan,
                  std::span<std::int64_t> counts) const {
  for (std::int64_t s = 0; counts_sequences(plan) && s < whole.sequences; ++s) {
    const auto row = whole.label.begin() + s * whole.positions;
    counts[0] += std::any_of(row, row + whole.positions, [](std::int32_t label) { return label >= 0; }) ? 1 : 0;
  }
  for (const std::int32_t answer : answers_of(held)) {
    counts[1] += answer >= 0 && answer % 2 == 0 ? 1 : 0;
  }
}

// Figures under TRL's names.
ObjectiveReport Pairs::report(const Settings& s, std::span<const double> sums, std::span<const std::int64_t> counts,
                              bool) const {
  const auto sum = [&](PairSum which) { return sums[static_cast<std::size_t>(which)]; };
  const auto mean = [&](PairSum which) { return sum(which) / static_cast<double>(counts[0]); };
  const double nll = sum(PairSum::nll) / static_cast<double>(std::max<std::int64_t>(counts[1], 1));
  ObjectiveReport told{.loss = mean(PairSum::loss),
                       .figures = {{"rewards/chosen", mean(PairSum::reward_chosen)},
                                   {"rewards/rejected", mean(PairSum::reward_rejected)},
                                   {"rewards/margins", mean(PairSum::reward_chosen) - mean(PairSum::reward_rejected)},
                                   {"rewards/accuracies", mean(PairSum::right)},
                                   {"logps/chosen", mean(PairSum::logp_chosen)},
                                   {"logps/rejected", mean(PairSum::logp_rejected)},
                                   {"nll_loss", nll}}};
  if (counts[1] > 0) {
    told.loss += preference_of(s).nll_weight * nll;
  }
  if (!std::isfinite(sum(PairSum::reference)) &&
      std::isfinite(sum(PairSum::logp_chosen) + sum(PairSum::logp_rejected))) {
    told.failure = fmt::format("the reference's logits ('{}') are not finite", reference(s).folder);
  }
  return told;
}

}  // namespace

std::shared_ptr<const Objective> make_pairs() {
  return std::make_shared<Pairs>();
}

}  // namespace orthant
