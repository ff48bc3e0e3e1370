// The keeper of the data axis: sums gradients, and shards what ranks would otherwise all hold, on a stream of its own.
//
// A group is sharded over the ranks that its gradient is summed over, whatever axes these come from: padded to a
// multiple of their number, of which each owns one block. Stage 1 shards the optimizer state, 2 gradients too, 3
// weights too (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020).
//
// All sums and gathers run on one side stream, in the order of the step, which is the same on every rank.
#pragma once

#include <orthant/acquire_order.h>
#include <orthant/plan.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace orthant::data_plugin {

struct ZeroOptions {
  int stage = 0;
  std::int64_t bucket = 1;       // stage 0: elements summed in one collective
  int shard_ranks = 0;           // shards among so many consecutive ranks, replicas of them across; 0: among all
  std::int64_t whole_below = 0;  // stage 3: weights of smaller groups stay whole, in elements
  bool prefetch = true;          // stage 3: gathers the next layer while one is computed
  bool layered = false;          // the backward passes of a layer follow one another: one sum for all micro-batches
};

class ZeroKeeper final : public Keeper {
 public:
  ZeroKeeper(Device* device, const ZeroOptions& options);  // device: null in a dry run

  Sums sums() const override { return Sums::rest; }
  bool early() const override { return true; }
  bool narrow_gradients() const override { return true; }
  void sum_group(Mesh& mesh, Group& sum) override;
  void adopt(ParamGroup& group, Holding& holding) override;
  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }
  void acquire(ParamGroup& group, Held what, const HookContext& at) override;
  void release(ParamGroup& group, Held what, const HookContext& at) override;
  bool sum_grads(ParamGroup& group, const HookContext& at) override;
  void finish_sums(const HookContext& at) override;
  void after_step(ParamGroup& group, Change why, const HookContext& at) override;
  void finish_updates(const HookContext& at) override;

 private:
  struct Ranks {
    Group* shards = nullptr;    // each of them owns one block
    Group* replicas = nullptr;  // that own the same block; null: the caller alone
  };
  struct Kept {
    ParamGroup* group = nullptr;
    Ranks ranks;                      // shards is null where nothing is sharded
    bool summed_once = false;         // owned_grad holds a part of this step's sum
    std::shared_ptr<Event> gathered;  // weight is there
  };
  Kept& kept(const ParamGroup& group) { return kept_.at(group.id); }
  void acquire_weight(ParamGroup& group, const HookContext& at);
  void acquire_grad(ParamGroup& group, Stream& s);
  void sum_whole(ParamGroup& group);
  void sum_shard(Kept& of);
  void gather(Kept& of, Stream& s);
  std::vector<int> soon(const ParamGroup& now) const;

  Device* device_;
  ZeroOptions options_;
  std::unique_ptr<Stream> side_;
  std::map<const Group*, Ranks> ranks_;  // by ParamGroup::sum
  std::map<int, Kept> kept_;             // by ParamGroup::id
  std::vector<int> late_;                // groups whose sum waits for finish_sums
  AcquireOrder order_;
  std::vector<int> idle_;  // released while nobody knew what comes next: kept until another layer is acquired
  std::deque<std::shared_ptr<Event>> sums_;  // of whole gradients that live until they are summed
};

}  // namespace orthant::data_plugin
