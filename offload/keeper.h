// OffloadKeeper: weights, gradients and optimizer state stay in host memory or on disk between their uses.
//
//   states     the update runs in the host's memory, beside the states: gradients go down, new weights come up (Ren et
//              al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021). On disk the states of
//              the next group are read while one is updated, and those of the last one are written (Rajbhandari et al.,
//              "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021).
//              With clip = "speculative" a group's update starts when its gradient is whole, on copies of its states,
//              before the norm says whether to clip; it is kept, or dropped and made again (Lian et al.,
//              "SuperOffload: Unleashing the Power of Large-Scale LLM Training on Superchips", 2025).
//   gradients  go down when a layer's backward pass is done; their norm is taken in the host's memory.
//   weights    come up a layer ahead, whole layers at a time, and are dropped behind it (Sun et al., "STRONGHOLD: Fast
//              and Affordable Billion-Scale Deep Learning Model Training", SC 2022). Those of routed experts may wait
//              for the gate, and come up for the experts that have rows (expert_window.h).
//
// Each rank offloads what it holds: with ZeRO its shards. The numbers are those of a run without it, bit for bit, on a
// device whose arithmetic is the host's.
#pragma once

#include <orthant/acquire_order.h>
#include <orthant/optimizer.h>
#include <orthant/plan.h>
#include <orthant/settings.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "expert_window.h"
#include "lanes.h"
#include "lazy_experts.h"
#include "slot.h"

namespace orthant::offload {

struct KeeperPlaces {
  Place states = Place::device, gradients = Place::device, weights = Place::device;
  double device_fraction = 0;  // of the parameters: whole groups that stay on the device
  bool lazy_experts = false;   // updates of experts without tokens are put off
  bool after_gate = false;     // weights of routed experts come up when it is known who has rows
  std::int64_t pinned = 0;     // experts of a layer and rank whose weights stay on the device; with after_gate
  std::int64_t host_rows = 0;  // experts with at most so many rows are computed in the host's memory; with after_gate
  bool speculative = false;    // updates are tried before the norm is known
  bool any() const {
    return states != Place::device || gradients != Place::device || weights != Place::device || lazy_experts;
  }
};

class OffloadKeeper final : public Keeper {
 public:
  // lanes: null where nothing is to be moved (Plan::dry).
  OffloadKeeper(const Settings& settings, const KeeperPlaces& places, std::shared_ptr<Lanes> lanes);

  bool outermost() const override { return true; }
  bool early() const override { return !places_.lazy_experts; }
  bool narrow_gradients() const override { return true; }
  void adopt(ParamGroup& group, Holding& holding) override;
  // Nothing; but by now the group is shared out, and what cannot be put off is refused.
  std::vector<StateSpec> state(const ParamGroup& group) const override;
  void acquire(ParamGroup& group, Held what, const HookContext& at) override;
  void release(ParamGroup& group, Held what, const HookContext& at) override;
  bool reads_rows() const override { return places_.lazy_experts || places_.after_gate; }
  void rows_of_experts(ParamGroup& group, std::span<const std::int64_t> rows, const HookContext& at) override;
  void sum_group(Mesh& mesh, Group& sum) override;
  void grad_ready(ParamGroup& group, const HookContext& at) override;
  void finish_sums(const HookContext& at) override;
  void settle(ParamGroup& group, bool keep, const HookContext& at) override;
  void after_step(ParamGroup& group, Change why, const HookContext& at) override;
  void metrics(std::map<std::string, double>& to) override;
  std::int64_t disk_bytes() const override { return lanes_ == nullptr ? 0 : lanes_->space.bytes(); }

 private:
  // Copies of a group's states, which an update may change before it is known to be right.
  struct Trial {
    Slot master;
    std::vector<Slot> states;
    Tensor weight;  // compute dtype [owned], in the host's memory; undefined where the master is the weight
  };
  struct Kept {
    ParamGroup* group = nullptr;
    bool filled = false;  // what is away has been moved there
    std::optional<Slot> master, weight, grad;
    std::vector<Slot> states;  // in the order of ParamGroup::states

    // --- weights that are on their way up, or there
    Tensor fetched;
    std::shared_ptr<Event> arrived;
    std::optional<ExpertWindow> window;     // of experts that come up after the gate
    Tensor planned_rows;                    // in a plan: as much as rows may take in the host's memory
    std::array<Tensor, 2> planned_offsets;  // and what says where they are
    // --- the gradient
    bool grad_held = false;    // the slot has what this step has added up so far
    bool complete = false;     // its last addend is there
    bool summed_late = false;  // it stays on the device until the sums are finished
    // --- while the state is acquired
    Tensor device_weight, device_grad;  // what the host's tensors stand in for
    bool updated = false;
    std::shared_ptr<Event> spent;  // the last update is done with the slots
    // --- an update that is tried
    std::optional<Trial> trial;
    bool settled = false;  // the next acquire(state) gives what was tried
    // --- routed experts
    std::optional<LazyExperts> lazy;
    bool counted = false;  // the gradient of this step is there: `lazy` knows who was chosen
  };

  Kept* find(const ParamGroup& group);  // null: all of it stays on the device
  bool full_precision() const { return settings_.run.dtype == ComputeType::fp32; }
  DType compute_dtype() const { return full_precision() ? DType::f32 : DType::bf16; }
  // Weights are their own master.
  bool own_master(const ParamGroup& group) const {
    return full_precision() || group.frozen || settings_.optimizer.master_weights == MasterWeights::none;
  }
  // Ranks gather the whole weight on the device after the update.
  static bool gathered_on_device(const ParamGroup& group) {
    return group.whole_weight && group.owned_elements < group.padded;
  }
  void reserve_disk();
  void fill(Kept& of, Stream& s);
  void fetch(Kept& of, const HookContext& at);
  void bring_experts(Kept& of, std::span<const std::int64_t> rows);
  void set_on_host(Kept& of, std::span<const std::int64_t> rows);
  bool on_host(const Kept& of, std::size_t expert, std::int64_t rows) const;
  void plan_on_host(Kept& of);
  void end_on_host(ParamGroup& group);
  void drop_weight(Kept& of);
  std::vector<int> soon(const ParamGroup& now) const;
  void acquire_weight(Kept& of, const HookContext& at);
  void release_weight(Kept& of);
  void acquire_grad(Kept& of, Stream& s);
  void send_grad_down(Kept& of, const std::shared_ptr<Event>& after);
  void release_grad(Kept& of, const HookContext& at);
  void acquire_whole_grad(Kept& of, const HookContext& at);
  void release_whole_grad(Kept& of);
  void acquire_state(Kept& of, bool to_change, const HookContext& at);
  void acquire_state_on_host(Kept& of, bool to_change, const HookContext& at);
  void acquire_state_on_device(Kept& of, bool to_change, Stream& s);
  void release_state(Kept& of, bool changed, const HookContext& at);
  void close_states(Kept& of);
  Tensor opened_on_host(Slot& slot);
  void bring_grad_to_host(Kept& of, Stream& s);
  // trial_keeping.cpp
  void make_trial(Kept& of);
  void acquire_trial(Kept& of, Stream& s);
  void release_trial(Kept& of);
  Tensor tried_weight(const Kept& of) const;
  // What the update of this step changes: all, or the experts that were chosen.
  std::vector<ParamGroup::Run> due_runs(const Kept& of) const;
  // lazy_keeping.cpp
  void make_up_for(Kept& of, std::span<const std::int64_t> rows, const HookContext& at);
  void end_lazy_step(Kept& of, const HookContext& at);
  void refuse_lazy(const ParamGroup& group) const;
  void refuse_after_gate(const ParamGroup& group) const;
  UpdateSlice slice_of(Kept& of, const Treatment& treatment, const ParamGroup::Run& run) const;
  Tensor state_of(Kept& of, const std::string& name, const ParamGroup::Run& run) const;
  void replay(Kept& of, const UpdateSlice& slice, const ParamGroup::Run& run, std::span<const UpdateStep> missed,
              Stream& home) const;
  void catch_up(Kept& of, std::size_t expert, Stream& s);
  void catch_up_all(Kept& of, Stream& s);
  void agree_on_chosen(Kept& of, Stream& s);
  void prefetch_state(const Kept& of, const HookContext& at);
  void prefetch_grad(const Kept& of, const HookContext& at);
  // Copies down and up, counted. What is copied is there after `after`.
  std::shared_ptr<Event> down(const Tensor& to_host, const Tensor& from, const std::shared_ptr<Event>& after);
  void up(const Tensor& to, const Tensor& from_host, const std::shared_ptr<Event>& after);
  Tensor empty(DType dtype, std::int64_t elements) const { return lanes_->device.empty(dtype, {elements}); }

  const Settings& settings_;
  KeeperPlaces places_;
  std::shared_ptr<Lanes> lanes_;
  std::map<int, Kept> kept_;               // by ParamGroup::id
  std::int64_t seen_ = 0, on_device_ = 0;  // elements of all groups so far, and of those that stay
  AcquireOrder order_;
  std::deque<std::shared_ptr<Event>> leaving_;  // gradients on their way down
  std::map<const Group*, Group*> together_;  // by ParamGroup::sum: the same ranks, for experts that any of them chose
  Traffic told_;                             // by metrics
  std::int64_t rollbacks_ = 0;               // steps whose updates were made twice
  std::int64_t rolled_back_ = -1;            // the last of them
  Kept* lingering_ = nullptr;  // whose states are open though released: a checkpoint asks for one piece after another
};

}  // namespace orthant::offload
