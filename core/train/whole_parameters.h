// Whole parameters for optimizers that ask for them (Treatment::whole), whatever holds their parts: ranks that own
// ranges of one slice (ZeRO), and ranks that hold slices of one matrix (tensor parallelism).
//
// A group that ranks share out is gathered at once. Slices are gathered parameter by parameter, and only where a rank
// owns some of it. Every rank that owns a part works on the whole (as Liu et al., "Muon is Scalable for LLM Training",
// 2025), so a matrix that n ranks hold in equal parts is transformed n times; what travels is one f32 number an
// element.
#pragma once

#include <orthant/param_group.h>
#include <orthant/plan.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/layers/parameter_store.h"

namespace orthant {

struct WholeParameter {
  const Param* param = nullptr;
  Group* slices = nullptr;    // the ranks that hold its slices; null: this rank's is all of it
  int dimension = 0;          // that is split
  std::vector<RowRun> order;  // which member's slice comes where; empty: as the members
  std::int64_t parts = 1;     // different slices
  bool needed = true;         // some rank of `slices` owns elements of it
};

class WholeParameters {
 public:
  // Makes groups of ranks: collective over the world. Errors: ConfigError for a parameter that is split in both
  // dimensions.
  WholeParameters(Plan& plan, ParamStore& store, Stream& stream);

  // Null where the optimizer does not ask for it whole.
  const WholeParameter* find(const ParamGroup& group, const Param& param) const;

  // Whether ranks own different ranges of the group, in which something is wanted whole.
  bool shared_out(const ParamGroup& group) const { return shares_.contains(group.id); }
  // f32 [padded], for what this rank owns; then, on all ranks of the group, what all of them wrote.
  Tensor begin_group(const ParamGroup& group, Stream& s) const;
  void end_group(const ParamGroup& group, const Tensor& prepared, Stream& s) const;

  // From this rank's slice, f32 flat, the whole parameter. It may be the same memory. Collective over `slices`.
  Tensor gather_slices(const WholeParameter& of, const Tensor& slice, Stream& s) const;
  // The reverse: this rank's slice of the whole, flat. It may be the same memory.
  Tensor own_slice(const WholeParameter& of, const Tensor& whole, Stream& s) const;

 private:
  struct Share {
    Group* ranks = nullptr;
    bool blocks = false;  // rank r of them owns block r of equal ones
  };
  void describe(WholeParameter& of) const;
  void agree_on_shares(Stream& stream);
  void agree_on_needs(Stream& stream);

  Plan& plan_;
  ParamStore& store_;
  std::unordered_map<const Param*, WholeParameter> whole_;
  std::unordered_map<int, Share> shares_;  // by ParamGroup::id
};

}  // namespace orthant
