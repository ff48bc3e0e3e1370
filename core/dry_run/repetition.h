// Micro-batches that repeat are counted and not walked through.
//
// Between its first and its last micro-batches a stage does the same again and again: of a schedule such as 1F1B the
// instructions for m + p micro-batches are those for m with a period of p in between, and so on for 2p. Where that
// holds for the instructions of a step, for what each of them computes again, and for those of the neighbouring stages,
// which decide when sends have left, two short steps are walked: one of m and one of m + p micro-batches. Where the
// longer needs no more memory, and makes the calls of the shorter with those of a period in between, the state behind
// a period is that before it, and so any number of periods is the same once more. Else the whole step is walked.
#pragma once

#include <cstdint>
#include <optional>

#include "core/config/config.h"
#include "core/dry_run/planning.h"

namespace orthant {

struct ShortStep {
  Config config, longer;     // with fewer micro-batches, and with one period more than that
  std::int64_t periods = 0;  // that the step has beyond those of `config`
};

// Of the stage of the plan's rank, for every size of its batch. Nothing: its micro-batches do not repeat, or are few.
// REQUIRES: the plan is frozen.
std::optional<ShortStep> shorter(const Config& config, const Plan& plan, std::int64_t step);

// The plan of the whole step, by those of the two short ones; nothing where they show that more micro-batches are not
// the same once more.
std::optional<RankPlan> repeated(const RankPlan& shorter, RankPlan longer, std::int64_t periods);

}  // namespace orthant
