// ExpertWindow: which experts' weights of a routed group are on the device.
//
// A layer's window is one buffer of the group's size. Only the experts whose rows are about to be computed are copied
// into it: in the forward pass once the gate has chosen, in the backward pass the same ones again, which are known by
// then. Experts that get most rows may be pinned: their weights stay on the device in memory of their own, and are
// copied within it (Kamahori et al., "Fiddler", 2024, keep popular experts likewise). No number depends on who is
// pinned.
//
// Thread safety: one per group; used on its rank's own thread.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "expert_runs.h"
#include "slot.h"

namespace orthant::offload {

class ExpertWindow {
 public:
  // pinned: so many experts stay on the device, at first the first ones. REQUIRES: at most the group's.
  ExpertWindow(const ParamGroup& group, std::size_t pinned, DType dtype, Lanes& lanes);

  // --- the window
  // It is a new buffer, or none.
  void emptied() { here_.assign(here_.size(), false); }
  // Enqueues what of these experts is not there yet, on the lane `up`. from: the group's weights in the host's memory.
  void bring(const Tensor& window, const std::vector<bool>& experts, Slot& from, Lanes& lanes);

  // --- who is read
  // rows: of each expert, in this forward pass.
  void chosen(int micro_batch, std::span<const std::int64_t> rows);
  // By the backward pass of a micro-batch: the rows of its forward pass.
  const std::vector<std::int64_t>& rows_of(int micro_batch) const { return rows_.at(micro_batch); }
  bool knows(int micro_batch) const { return rows_.contains(micro_batch); }

  // --- who is pinned
  // The weights have changed: what is pinned comes again when it is next read.
  void changed();
  // Pins those with the most rows of late; where that is a tie, the lower numbers.
  void end_step();
  bool pinned(std::size_t expert) const { return pin_of_[expert] != none; }

  std::size_t experts() const { return runs_.size(); }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct Pin {
    Tensor weights;      // [elements of an expert]: its runs, one after the other
    bool fresh = false;  // they are the expert's
  };

  std::vector<std::vector<ExpertRun>> runs_;       // of each expert
  std::vector<bool> here_;                         // in the window
  std::map<int, std::vector<std::int64_t>> rows_;  // of each expert, by micro-batch
  std::vector<double> load_;                       // rows of the steps so far, older ones count less
  std::vector<double> load_now_;                   // of this step
  std::vector<Pin> pins_;
  std::vector<std::size_t> pin_of_;  // of each expert: in pins_, or none
};

}  // namespace orthant::offload
