#include "core/plan/recompute_rule.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "core/plan/batch_share.h"

namespace orthant {
namespace {

using Pair = std::pair<int, int>;  // chunk, micro-batch

Recompute recompute_of(const std::string& name) {
  require(name == "none" || name == "selective" || name == "full", "memory.recompute = \"{}\" stands for no rule yet",
          name);
  return name == "none" ? Recompute::none : name == "selective" ? Recompute::selective : Recompute::full;
}

// Of the pairs in flight at most `most` at once, as many of the whole program as can be: when there is one too many,
// the one whose backward comes last gives up (Faigle and Nawijn, "Note on scheduling intervals on-line", 1995).
std::set<Pair> keeping(std::span<const Instr> program, std::int64_t most) {
  std::map<Pair, std::size_t> end;
  for (std::size_t i = 0; i < program.size(); ++i) {
    if (program[i].op == Op::backward) {
      end[{program[i].chunk, program[i].micro_batch}] = i;
    }
  }
  std::set<Pair> kept;
  std::set<std::pair<std::size_t, Pair>> now;  // in flight, by their ends
  for (const Instr& instr : program) {
    const Pair pair{instr.chunk, instr.micro_batch};
    if (instr.op == Op::forward) {
      kept.insert(pair);
      now.emplace(end.at(pair), pair);
      if (static_cast<std::int64_t>(now.size()) > most) {
        kept.erase(now.rbegin()->second);
        now.erase(std::prev(now.end()));
      }
    } else if (instr.op == Op::backward) {
      now.erase({end.at(pair), pair});
    }
  }
  return kept;
}

}  // namespace

RecomputeRule::RecomputeRule(const MemorySettings& memory, std::span<const Instr> program)
    : others_(recompute_of(memory.recompute)), kept_(keeping(program, memory.keep_micro_batches)) {}

int most_in_flight(const Plan& plan) {
  int most = 0;
  for (int stage = 0; stage < plan.stages(); ++stage) {
    int now = 0;
    for (const Instr& instr : plan.schedule().steps(stage, plan.stages(), largest_share(plan).micro_batches)) {
      now += instr.op == Op::forward ? 1 : instr.op == Op::backward ? -1 : 0;
      most = std::max(most, now);
    }
  }
  return most;
}

}  // namespace orthant
