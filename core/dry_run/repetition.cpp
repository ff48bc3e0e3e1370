#include "core/dry_run/repetition.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/plan/batch_share.h"
#include "core/plan/recompute_rule.h"

namespace orthant {
namespace {

struct Labelled {
  Instr instr;
  Recompute recompute = Recompute::none;
};
using Program = std::vector<Labelled>;

// Empty: the schedule refuses so many, such as one that takes them in rounds. What a neighbour computes again does not
// matter here: it sends and receives in the same order.
Program program_of(const Plan& plan, int stage, int micro_batches) {
  std::vector<Instr> instrs;
  try {
    instrs = plan.schedule().steps(stage, plan.stages(), micro_batches);
  } catch (const Error&) {
    return {};
  }
  Program program;
  for (const Instr& instr : instrs) {
    program.push_back({.instr = instr});
  }
  if (stage == plan.stage()) {
    const RecomputeRule rule(plan.settings().memory, instrs);
    for (Labelled& one : program) {
      one.recompute = rule.of(one.instr.chunk, one.instr.micro_batch);
    }
  }
  return program;
}

// `b` is `a`, of `later` micro-batches further on.
bool same(const Labelled& a, const Labelled& b, int later) {
  if (a.instr.op != b.instr.op || a.instr.chunk != b.instr.chunk) {
    return false;
  }
  return a.instr.op == Op::finish_grads ||
         (a.instr.micro_batch + later == b.instr.micro_batch && a.recompute == b.recompute);
}

bool same(const Program& a, std::size_t from_a, const Program& b, std::size_t from_b, std::size_t count, int later) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!same(a[from_a + i], b[from_b + i], later)) {
      return false;
    }
  }
  return true;
}

// Whether `whole` is the program of `few` micro-batches with periods of `period` in between.
bool repeats(const Plan& plan, int stage, int few, int period, const Program& whole, int all) {
  const Program a = program_of(plan, stage, few), b = program_of(plan, stage, few + period);
  if (a.empty() || b.size() <= a.size()) {
    return false;
  }
  const std::size_t more = b.size() - a.size(), periods = static_cast<std::size_t>((all - few) / period);
  if (whole.size() != a.size() + periods * more) {
    return false;
  }
  std::size_t begin = 0;  // of the period
  while (begin < a.size() && same(a[begin], b[begin], 0)) {
    ++begin;
  }
  const std::size_t rest = a.size() - begin;
  bool good = same(a, begin, b, begin + more, rest, period) && same(a, 0, whole, 0, begin, 0) &&
              same(a, begin, whole, begin + periods * more, rest, static_cast<int>(periods) * period);
  for (std::size_t p = 0; good && p < periods; ++p) {
    good = same(b, begin, whole, begin + p * more, more, static_cast<int>(p) * period);
  }
  return good;
}

// The fewest micro-batches from which on they repeat, and some more: what the first ones set up, such as an order that
// a keeper learns, is done by then. 0: none.
int fewest(const Plan& plan, int period, int all) {
  constexpr int further = 2;  // periods
  const int stages = plan.stages(), chunks = static_cast<int>(plan.cut().size() - 1) / stages;
  const int most = std::min(all - (further + 2) * period, 4 * stages * chunks + 4);
  const int least = all % period == 0 ? period : all % period;
  if (most < least) {
    return 0;
  }
  std::map<int, Program> whole;
  for (const int by : {0, stages - 1, 1}) {
    const int stage = (plan.stage() + by) % stages;
    if (!whole.contains(stage)) {
      whole[stage] = program_of(plan, stage, all);
    }
  }
  const auto all_repeat = [&](int few) {
    return std::all_of(whole.begin(), whole.end(),
                       [&](const auto& of) { return repeats(plan, of.first, few, period, of.second, all); });
  };
  for (int few = least; few <= most; few += period) {
    if (all_repeat(few) && all_repeat(few + further * period)) {
      return few + further * period;
    }
  }
  return 0;
}

Config with_batches(Config config, const std::vector<BatchShare>& shares, const std::vector<int>& micro_batches) {
  BatchSettings& batch = config.settings.batch;
  const auto sequences = [&](std::size_t i, std::int64_t of) {
    return of / shares[i].micro_batches * micro_batches[i];
  };
  batch.sequences = sequences(0, batch.sequences);
  for (std::size_t i = 0; i < batch.grow_to.size(); ++i) {
    batch.grow_to[i] = sequences(i + 1, batch.grow_to[i]);
  }
  batch.micro_batch = shares.front().micro_batch;
  return config;
}

// What may be a period: one micro-batch, a round of all stages, or as many as are in flight, where some of these keep
// everything (memory.keep_micro_batches).
std::set<int> periods_of(const Plan& plan, int micro_batches) {
  int now = 0, in_flight = 1;
  for (const Labelled& one : program_of(plan, plan.stage(), micro_batches)) {
    now += one.instr.op == Op::forward ? 1 : one.instr.op == Op::backward ? -1 : 0;
    in_flight = std::max(in_flight, now);
  }
  return {1, plan.stages(), in_flight};
}

}  // namespace

std::optional<ShortStep> shorter(const Config& config, const Plan& plan, std::int64_t step) {
  const std::vector<BatchShare> shares = batch_shares(plan);
  for (const int period : periods_of(plan, largest_share(plan).micro_batches)) {
    std::vector<int> few, more;
    for (const BatchShare& share : shares) {
      const int found = fewest(plan, period, share.micro_batches);
      few.push_back(found == 0 ? share.micro_batches : found);
      more.push_back(found == 0 ? share.micro_batches : found + period);
    }
    if (few == more) {
      continue;
    }
    const std::size_t number = times_grown(plan.settings().batch, step);
    return ShortStep{.config = with_batches(config, shares, few),
                     .longer = with_batches(config, shares, more),
                     .periods = (shares.at(number).micro_batches - few.at(number)) / period};
  }
  return std::nullopt;
}

std::optional<RankPlan> repeated(const RankPlan& shorter, RankPlan longer, std::int64_t periods) {
  const std::vector<CollectiveCall>& few = shorter.step.calls;
  std::vector<CollectiveCall>& more = longer.step.calls;
  if (shorter.memory != longer.memory || shorter.step.groups != longer.step.groups || more.size() < few.size()) {
    return std::nullopt;
  }
  const auto differ = std::mismatch(few.begin(), few.end(), more.begin());
  const auto period_end = differ.second + static_cast<std::ptrdiff_t>(more.size() - few.size());
  if (!std::equal(differ.first, few.end(), period_end)) {
    return std::nullopt;
  }
  std::for_each(differ.second, period_end, [&](CollectiveCall& call) { call.times = periods; });
  return longer;
}

}  // namespace orthant
