// ParamStore: the parameter groups that this rank holds, with their buffers.
//
// Thread safety: one per rank; not shared.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <orthant/ops.h>
#include <orthant/param_group.h>
#include <orthant/plan.h>

#include "core/arch/links.h"
#include "core/layers/owned_pieces.h"

namespace orthant {

// What a gate keeps of a layer of this rank's stage: the same on every rank that has it.
struct GateState {
  std::string name;
  int layer = 0;
  Tensor value;          // f32 [E]
  bool written = false;  // by this rank, into checkpoints
  bool learns = true;    // GateStateSpec
};

class ParamStore final : public Parameters {
 public:
  // Places every parameter by the plan, makes the groups' sum groups (collective over the world), allocates weights,
  // gradients and optimizer state, and initialises the weights: each element a function of seed, name and global
  // index. REQUIRES: the plan is frozen. begin false: weights are 0, for somebody who loads all of them.
  ParamStore(Plan& plan, Stream& stream, bool begin = true);
  // Of a dry run: which slices this rank would hold, without buffers.
  explicit ParamStore(Plan& plan);

  std::vector<std::unique_ptr<ParamGroup>>& groups() { return groups_; }
  const std::vector<std::unique_ptr<ParamGroup>>& groups() const { return groups_; }

  ParamRef ref(const std::string& name) const override;
  bool holds(const std::string& name) const override;
  struct Found {
    ParamGroup* group;
    const Param* param;
  };
  // group is null where this rank does not hold it.
  Found find(const std::string& name) const;
  const std::vector<GateState>& gate_states() const { return gate_states_; }
  Tensor gate_state(int layer) const;  // undefined where the layer's gate keeps nothing
  // The groups with parameters that `layer` uses.
  std::vector<ParamGroup*> groups_of_layer(int layer) const;

  // Gradients that come and go (ParamGroup::brief_grad): there from the first to the last of these, in one step, and
  // those of a frozen group in one layer's pass. What make_grad makes holds nothing but the zeros of its padding.
  void make_grad(ParamGroup& group, Stream& s) const;
  void drop_grad(ParamGroup& group) const;

  // Copies master weights into compute weights, and lets the keepers spread them, which are told `why`.
  void refresh_weights(const Plan& plan, Change why, const HookContext& at);
  std::int64_t elements() const;  // held by this rank

 private:
  // Who sums and who holds: alike for all parameters that are divided alike, such as those of a layer's experts.
  struct Sharing {
    const ParamSpec* of = nullptr;  // the first that was met
    Group* sum = nullptr;
    bool counted = false;  // Param::counted
  };
  const Sharing& sharing(Plan& plan, const ParamSpec& spec);
  void add_layer(Plan& plan, const LayerSpecs& layer);
  void make_index();
  Group& sum_group(Plan& plan, const ParamSpec& spec, const std::vector<int>& members);
  void allocate(ParamGroup& group, const Plan& plan, Stream& stream);
  static void initialise(ParamGroup& group, const Plan& plan, Stream& stream);
  static void initialise(ParamGroup& group, const Param& p, const OwnedPiece& piece, const Plan& plan, Stream& stream);
  std::vector<std::unique_ptr<ParamGroup>> groups_;
  std::unordered_map<std::string, Found> by_name_;
  std::unordered_map<int, std::vector<ParamGroup*>> by_layer_;
  std::vector<GateState> gate_states_;
  std::vector<Sharing> sharings_;
  std::vector<Group*> sums_;  // all sets of ranks that gradients are summed over, in the order of their making
};

// A 32-bit hash of a parameter's name: the random numbers' site.
std::uint32_t site_of(const std::string& name);

}  // namespace orthant
