// ParamGroup: parameters of one layer whose gradients are summed over the same ranks, back to back in flat buffers.
//
// A group is what a Keeper (keeper.h) acts on. Layers read `weight` and add to `grad`. The optimizer updates `master`.
// A rank owns its groups whole unless a keeper shards them. A group has three parts, by who sets them:
//   Placement  what lies where. The core sets it, keepers its Holding in `adopt`; from then on nothing of it changes.
//   Buffers    weights, gradients and states. The core allocates them; a keeper sets those that come and go by the
//              Holding, and the streams on which they live meanwhile.
//   StepNotes  what the step and the keepers tell each other within one step.
//
// Thread safety: one rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/group.h>
#include <orthant/param.h>
#include <orthant/param_state.h>
#include <orthant/tensor.h>

namespace orthant {

class Event;
class Stream;

// What of a group stays elsewhere between its uses: the buffers are undefined then, and Keeper::acquire brings them.
struct Away {
  bool weight = false;  // weight, owned_weight
  bool grad = false;    // grad, owned_grad
  bool state = false;   // master, the optimizer's states
  bool any() const { return weight || grad || state; }
  bool operator==(const Away&) const = default;
};

// Who keeps what of a group: set by Keeper::adopt, before there are buffers.
struct Holding {
  std::int64_t padded = 0;  // elements of the flat buffers, at least those of the parameters; what is beyond is zero
  // The flat range whose optimizer state and update are this rank's. The owners' ranges tile [0, padded) among the
  // ranks of the sum, each range with one owner; a checkpoint is written by all that have it.
  std::int64_t owned_begin = 0, owned_elements = 0;
  bool owner = true;         // among the ranks of the sum that own this range, this one counts it in norms
  bool whole_weight = true;  // else only owned_weight lasts, and acquire(weight) makes `weight`
  bool whole_grad = true;    // else acquire(grad) makes `grad`, and sum_grads takes it away
  bool sum_each = false;     // gradients are summed after each micro-batch's backward, not once a step
  bool tries = false;        // its update may be tried before the norm is known: acquire(trial), settle
  Away away;
  bool operator==(const Holding&) const = default;
};

struct Placement : Holding {
  int id = 0;            // the groups of a rank are numbered from 0, in the order of the model
  std::string name;      // "layer 3 experts"
  int layer = 0;         // its backward completes the gradient: the first layer of this rank that uses the parameters
  bool experts = false;  // routed experts: their gradients are overwritten, not zeroed and added to
  // All of its parameters are frozen: no gradient outlives a layer's backward pass, and there is no state but the
  // weights, which are their own master. Keepers are asked for weights and, at the start and for checkpoints, for the
  // state: no hook of gradients or updates is called, and what a Holding says of them is set aside.
  bool frozen = false;
  // Ranks on several stages hold it, and come to it at different times of a step. While layers run, a collective of
  // these ranks on the main stream would wait forever, and is refused: it belongs in finish_sums, or on a side stream.
  bool scattered = false;
  std::vector<Param> params;
  std::int64_t elements = 0;      // of all parameters
  DType grad_dtype = DType::f32;  // of grad and owned_grad: bf16 with optimizer.gradient_dtype, but f32 if it is frozen
  // grad and owned_grad are made when a step first adds to them, and are free behind the update
  // (optimizer.in_backward).
  bool brief_grad = false;
  // Gradients are summed over these ranks (size 1: none to sum). Used on one stream only: the Keeper's that sums,
  // else the main one.
  Group* sum = nullptr;

  // Where owned ranges may begin and end: at multiples of so many elements. More than 1 where states are stored in
  // blocks (state_code.h): a keeper that cuts one is refused.
  std::int64_t share_unit = 1;
};

struct Buffers {
  Tensor weight;        // compute dtype [padded]; may be undefined between Keeper::release and acquire
  Tensor owned_weight;  // compute dtype [owned]; a part of weight where that is whole
  Tensor grad;          // grad_dtype [padded], and while a layer runs f32; may be undefined outside a backward pass
  Tensor owned_grad;  // grad_dtype [owned], of the whole batch from whole_grads on; a part of grad where that is whole
  Tensor master;      // f32 [owned]; owned_weight itself where that is f32, in a frozen group, or where
                      // optimizer.master_weights is "none": bf16 then
  std::vector<ParamState> states;          // the optimizer's and the weights' average (weight_average.h)
  std::vector<PluginState> plugin_states;  // Keeper::state, in the order of the chain

  // Where what is acquired lives; null: on the device, in the order of the main stream
  Stream* grad_stream = nullptr;   // owned_grad, from acquire(whole_grad) to its release
  Stream* state_stream = nullptr;  // owned_grad and what belongs to the state, while it is acquired
};

struct StepNotes {
  bool grad_empty = true;  // nothing has been added to grad: what it holds is overwritten
  bool summed = false;     // a keeper sums it in this step
  // Set by the keeper that sums, in sum_grads: the sum is there behind it. Null: behind finish_sums.
  std::shared_ptr<Event> sum_done;

  // Owned elements whose update a keeper puts off, in order; set and reset around the update. Their gradient is zero,
  // and the keeper makes up for what they missed (Optimizer::replay) before anybody reads them.
  struct Run {
    std::int64_t begin = 0, count = 0;
    std::int64_t end() const { return begin + count; }
    bool operator==(const Run&) const = default;
  };
  std::vector<Run> put_off;

  // Experts whose rows are computed beside their weights, in the host's memory: set by a keeper in rows_of_experts, and
  // again when it brings the weights for the backward pass of that micro-batch; gone when they are released.
  struct OnHost {
    std::vector<std::int64_t> rows;           // of every expert of the group, in this micro-batch
    std::vector<bool> experts;                // whose; `weight` has nothing of theirs
    Tensor weight;                            // [padded], as `weight`, in the host's memory
    Stream* stream = nullptr;                 // of the host (Device::make_host_stream); after it `weight` is there
    std::int64_t to_host = 0, to_device = 0;  // bytes of rows that have travelled, counted by who computes
  };
  std::optional<OnHost> on_host;
};

struct ParamGroup : Placement, Buffers, StepNotes {
  // A plugin's tensor of this group, by its name in StateSpec. Errors: Error where it declared none.
  PluginState& state(const std::string& plugin, const std::string& state_name) {
    for (PluginState& one : plugin_states) {
      if (one.name == "plugins/" + plugin + "/" + state_name) {
        return one;
      }
    }
    fail("plugin '{}' has declared no state '{}' for '{}': name it in Keeper::state", plugin, state_name, name);
  }

  Tensor weight_of(const Param& p) const { return weight.slice(p.begin, shape_of(p)); }
  Tensor grad_of(const Param& p) const { return grad.slice(p.begin, shape_of(p)); }
  static Shape shape_of(const Param& p) {
    return p.spec.global.rank() == 1 ? Shape{p.size[0]} : Shape{p.size[0], p.size[1]};
  }
};

// A parameter as a layer meets it; the group that it lies in depends on the layout.
class ParamRef {
 public:
  ParamRef() = default;
  ParamRef(ParamGroup& group, std::size_t index) : group_(&group), index_(index) {}
  ParamGroup& group() const { return *group_; }
  const Param& param() const { return group_->params[index_]; }
  Tensor weight() const { return group_->weight_of(param()); }  // compute dtype; there while its layer runs
  Tensor grad() const { return group_->grad_of(param()); }      // f32; a layer adds to it in its backward
  // Whether anybody reads the gradient: that of a frozen parameter is dropped behind the layer.
  bool wants_grad() const { return !param().spec.frozen || param().spec.adapted; }
  // `grad`, or undefined where nobody wants it: linear_backward then leaves the product out.
  Tensor wanted_grad() const { return wants_grad() ? grad() : Tensor(); }

 private:
  ParamGroup* group_ = nullptr;
  std::size_t index_ = 0;
};

// Matrices that lie back to back in one group and have equal rows: one matrix product serves all.
class ParamMatrix {
 public:
  ParamMatrix() = default;
  // Errors: Error if they are not neighbours.
  explicit ParamMatrix(const std::vector<ParamRef>& refs);
  static bool neighbours(const ParamRef& a, const ParamRef& b);
  Tensor weight() const { return first_.group().weight.slice(first_.param().begin, shape()); }  // [rows, columns]
  Tensor grad() const { return first_.group().grad.slice(first_.param().begin, shape()); }
  Tensor wanted_grad() const { return wants_grad_ ? grad() : Tensor(); }  // as ParamRef's, of any of the matrices

 private:
  Shape shape() const { return {rows_, first_.param().size[1]}; }
  ParamRef first_;
  std::int64_t rows_ = 0;
  bool wants_grad_ = false;
};

// The parameters that a rank holds, by name.
class Parameters {
 public:
  virtual ~Parameters() = default;
  // Errors: Error if this rank does not hold it.
  virtual ParamRef ref(const std::string& name) const = 0;
  virtual bool holds(const std::string& name) const = 0;
};

}  // namespace orthant
