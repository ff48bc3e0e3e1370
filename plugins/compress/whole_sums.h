// What the sums of this plugin have in common: who asks for them, when ranks meet, and that each holds whole gradients.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/keeper.h>

namespace orthant::compress {

class WholeSums : public Keeper {
 public:
  // warm_up: the first so many steps are left to others.
  explicit WholeSums(std::int64_t warm_up) : warm_up_(warm_up) {}
  Sums sums() const final { return Sums::all; }
  bool sum_grads(ParamGroup& group, const HookContext& at) final;
  void finish_sums(const HookContext& at) final;

 protected:
  // Errors: SettingError where a rank holds a shard of the group's gradient.
  static void refuse_shards(const ParamGroup& group);
  // Whether there is anything to do for a group; by default where several ranks sum it.
  virtual bool takes(const ParamGroup& group) const;
  // All ranks of group.sum are here, on the context's stream.
  virtual void sum(ParamGroup& group, const HookContext& at) = 0;

 private:
  std::int64_t warm_up_;
  std::vector<ParamGroup*> late_;  // of several stages: their ranks meet when all layers have run
};

}  // namespace orthant::compress
