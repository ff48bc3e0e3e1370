// Which passes keep all their activations (memory.keep_micro_batches): never more at once than may, and of all such
// choices one with the most passes, found by trying them all.
#include "core/plan/recompute_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "plugins/pipeline/schedules.h"

namespace orthant::recompute_rule_test {
namespace {

struct Stage {
  std::vector<Instr> passes;
  std::vector<std::pair<int, int>> pairs;  // in order of their forwards
};

Stage stage_of(std::vector<Instr> passes) {
  Stage stage{.passes = std::move(passes), .pairs = {}};
  for (const Instr& instr : stage.passes) {
    if (instr.op == Op::forward) {
      stage.pairs.emplace_back(instr.chunk, instr.micro_batch);
    }
  }
  return stage;
}

// The most pairs of a set that are in flight at once.
template <class Has>
int at_once(const Stage& stage, Has has) {
  int now = 0, most = 0;
  for (const Instr& instr : stage.passes) {
    if ((instr.op == Op::forward || instr.op == Op::backward) && has(instr.chunk, instr.micro_batch)) {
      now += instr.op == Op::forward ? 1 : -1;
      most = std::max(most, now);
    }
  }
  return most;
}

int most_that_can_keep(const Stage& stage, int keep) {
  int best = 0;
  for (unsigned set = 0; set < 1u << stage.pairs.size(); ++set) {
    const auto has = [&](int chunk, int m) {
      const auto at = std::find(stage.pairs.begin(), stage.pairs.end(), std::pair(chunk, m)) - stage.pairs.begin();
      return (set >> at & 1u) == 1;
    };
    if (std::popcount(set) > best && at_once(stage, has) <= keep) {
      best = std::popcount(set);
    }
  }
  return best;
}

RecomputeRule rule_of(const Stage& stage, int keep, const char* recompute = "full") {
  MemorySettings memory;
  memory.recompute = recompute;
  memory.keep_micro_batches = keep;
  return {memory, stage.passes};
}

TEST(RecomputeRule, KeepsAsManyPassesAsCanBeAtOnce) {
  for (int stages : {1, 2, 4}) {
    for (int s = 0; s < stages; ++s) {
      for (const Stage& stage :
           {stage_of(pipeline::gpipe(s, stages, 8)), stage_of(pipeline::one_forward_one_backward(s, stages, 8)),
            stage_of(pipeline::interleaved(s, stages, 2, 4)), stage_of(pipeline::interleaved(s, stages, 3, 4))}) {
        for (int keep = 0; keep <= 6; ++keep) {
          const RecomputeRule rule = rule_of(stage, keep);
          const auto keeps = [&](int chunk, int m) { return rule.of(chunk, m) == Recompute::none; };
          EXPECT_LE(at_once(stage, keeps), keep);
          EXPECT_EQ(rule.kept(), most_that_can_keep(stage, keep)) << s << " of " << stages << ", keep " << keep;
          EXPECT_EQ(rule.kept(), std::count_if(stage.pairs.begin(), stage.pairs.end(),
                                               [&](const auto& pair) { return keeps(pair.first, pair.second); }));
        }
      }
    }
  }
}

// Two in flight on the first of two stages: with room for one every other micro-batch keeps.
TEST(RecomputeRule, OneForwardOneBackwardByHand) {
  const Stage first = stage_of(pipeline::one_forward_one_backward(0, 2, 6));
  const RecomputeRule rule = rule_of(first, 1, "selective");
  for (int m = 0; m < 6; ++m) {
    EXPECT_EQ(rule.of(0, m), m % 2 == 0 ? Recompute::none : Recompute::selective) << m;
  }
  EXPECT_EQ(rule_of(first, 2).kept(), 6) << "all that are in flight";
  EXPECT_EQ(rule_of(stage_of(pipeline::one_forward_one_backward(1, 2, 6)), 1).kept(), 6) << "the last stage has one";
  EXPECT_EQ(rule_of(first, 0).of(0, 0), Recompute::full);
}

}  // namespace
}  // namespace orthant::recompute_rule_test
