// LazyExperts: which experts of a parameter group have missed updates, and which.
//
// An expert that no token of a step chose has a gradient of zeros. Its update decays its moments and its weights, and
// nothing else, so it can be put off and made up for, many steps in one pass, when the expert is next chosen
// (Optimizer::replay leaves the same bits). Until then nothing of it is moved.
//
// Thread safety: one per group; used on its rank's own thread.
#pragma once

#include <orthant/param_group.h>

#include <cstdint>
#include <span>
#include <vector>

#include "expert_runs.h"

namespace orthant::offload {

// What an update needs to know of its step, besides the settings.
struct PastStep {
  std::int64_t step = 0;
  double lr = 0;
};

class LazyExperts {
 public:
  // REQUIRES: this rank owns the whole group.
  explicit LazyExperts(const ParamGroup& group);

  std::size_t experts() const { return experts_.size(); }
  const std::vector<ExpertRun>& runs(std::size_t expert) const { return experts_[expert].runs; }

  // --- a step
  void begin_step();
  // Experts with rows are chosen in this step.
  void chosen(std::span<const std::int64_t> rows);
  void set_chosen(std::size_t expert) { experts_[expert].chosen = true; }
  bool is_chosen(std::size_t expert) const { return experts_[expert].chosen; }
  // The elements of the experts that are chosen, and of the others, each in order and neighbours joined.
  std::vector<ParamGroup::Run> chosen_runs() const { return runs_of(true); }
  std::vector<ParamGroup::Run> idle_runs() const { return runs_of(false); }
  // The experts that are chosen have made the step; the others miss it.
  void end_step(const PastStep& step);

  // --- what was missed
  std::span<const PastStep> missed(std::size_t expert) const;
  void caught_up(std::size_t expert) { experts_[expert].made = steps_.size(); }
  // Somebody has written everything: nothing was missed.
  void forget();
  std::size_t longest() const { return steps_.size(); }

 private:
  struct Expert {
    std::vector<ExpertRun> runs;
    std::size_t made = 0;  // of steps_
    bool chosen = false;
  };
  std::vector<ParamGroup::Run> runs_of(bool chosen) const;

  std::vector<Expert> experts_;  // in the order of the group
  std::vector<PastStep> steps_;  // since the oldest that somebody misses
};

}  // namespace orthant::offload
