// KeeperChain: the keepers of a plan as one object, which is all that the step meets of them.
//
// It keeps what a keeper promises: what adopt leaves behind is checked here, and what a hook throws names its plugin.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <orthant/keeper.h>
#include <orthant/ops.h>
#include <orthant/step_context.h>

namespace orthant {

class KeeperChain {
 public:
  void add(std::string plugin, std::unique_ptr<Keeper> keeper);
  bool empty() const { return links_.empty(); }
  // Errors: ConfigError where a keeper must sum and one before it sums.
  void check_sums() const;
  // Errors: SettingError for optimizer.in_backward where a keeper needs all gradients before one group is updated.
  void check_in_backward() const;
  // Errors: SettingError for optimizer.gradient_dtype where a keeper takes gradients in f32 alone.
  void check_narrow_gradients() const;

  void sum_group(Mesh& mesh, Group& sum);
  // Lets every keeper adopt the group, and notes the state that they declare: ParamGroup::plugin_states, without
  // tensors. Errors: ConfigError naming both plugins where two change the holding, Error for an impossible one.
  void adopt(ParamGroup& group);
  // The plugin whose keeper changed the group's holding; empty: none did.
  std::string holder_of(const ParamGroup& group) const;

  void acquire(ParamGroup& group, Held what, const HookContext& at);
  void release(ParamGroup& group, Held what, const HookContext& at);
  bool reads_rows() const;
  void rows_of_experts(ParamGroup& group, std::span<const std::int64_t> rows, const HookContext& at);
  // A group's gradient is complete on this rank: grad_ready of all keepers, then the one that sums.
  void gradients_ready(ParamGroup& group, const HookContext& at);
  void finish_sums(const HookContext& at);
  void whole_grads(ParamGroup& group, const HookContext& at);
  void settle(ParamGroup& group, bool keep, const HookContext& at);
  void weight_ready(ParamGroup& group, Change why, const HookContext& at);
  // Behind weight_ready.
  void after_step(ParamGroup& group, Change why, const HookContext& at);
  void finish_updates(const HookContext& at);
  std::int64_t disk_bytes() const;  // of all keepers
  // Adds the keepers' numbers, as PLUGIN.KEY.
  void add_metrics(std::map<std::string, double>& to);

 private:
  struct Link {
    std::string plugin;
    std::unique_ptr<Keeper> keeper;
  };
  template <class Call>
  void each(const char* hook, Call call);
  void check_trial(const ParamGroup& group, const std::string& plugin) const;

  std::vector<Link> links_;
  std::map<int, std::string> holders_, away_;  // by ParamGroup::id: who shares it out, who holds some of it elsewhere
};

HookContext hook_context(const StepContext& ctx, Pass pass);

// The stream on which what was acquired lives.
inline Stream& home_of(const ParamGroup& group, Held what, const HookContext& at) {
  Stream* const home = what == Held::whole_grad ? group.grad_stream : group.state_stream;
  return home == nullptr ? at.stream : *home;
}

// Calls `use` with the group's gradient or state acquired and the stream on which that lives.
template <class Use>
void with_held(KeeperChain& chain, ParamGroup& group, Held what, const HookContext& at, Use&& use) {
  chain.acquire(group, what, at);
  use(home_of(group, what, at));
  chain.release(group, what, at);
}

}  // namespace orthant
