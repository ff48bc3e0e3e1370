// Param, ParamGroup: weights, who holds which slice of them, and where their gradients are summed.
//
// A group is what a Keeper acts on. It holds the parameters of one layer whose gradients are summed over the same
// ranks, back to back in flat buffers. Layers read `weight` and add to `grad`. The optimizer updates `master`. A rank
// owns its groups whole unless a keeper shards them.
//
// Ownership: the core makes groups and their buffers; a Keeper (keeper.h) may set those that come and go by its
// Holding, and the streams on which they live meanwhile. It sets nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/group.h>
#include <orthant/mesh.h>
#include <orthant/state_code.h>
#include <orthant/tensor.h>

namespace orthant {

class Event;
class Stream;

enum class Init { zeros, ones, normal };

// One named weight as the model declares it. Names are those of the checkpoint and of the export.
struct ParamSpec {
  std::string name;
  Shape global;  // 1-D or 2-D
  Region region = Region::embedding;
  std::optional<Dim> split[2] = {};  // which dim of the model each dimension is, if any
  std::int64_t units[2] = {0, 0};    // what is divided (heads, not channels); 0: elements
  // What happens if an axis has more ranks than there are units. True: neighbours hold the same unit, and each has its
  // own part of the gradient (the keys and values of grouped queries). False: the layout is refused.
  bool repeats = false;
  std::optional<std::int64_t> expert = {};  // the expert whose parameter it is; nothing: it belongs to no routed expert
  // The links of the chain that use it, by number (orthant/model.h). Several share it (tied embeddings); none: all.
  std::vector<int> layers = {};
  Init init = Init::normal;
  float std = 0.02f;
  bool decay = true;  // false for what optimizer.no_decay names: the core sets that
  // What the learning rate is multiplied by (optimizer.lr_of). The core sets it.
  double lr_scale = 1;
  // It keeps its value (train.freeze, [lora]): no update, no optimizer state, no part in norms. The core sets it.
  bool frozen = false;
  // Its product reads W + scale B A, with A and B parameters of their own ([lora]). The core sets it.
  bool adapted = false;
};

struct Param {
  ParamSpec spec;
  std::int64_t offset[2] = {0, 0};  // of this rank's slice in the global tensor
  std::int64_t size[2] = {0, 0};    // of the slice; size[1] = 1 for 1-D
  std::int64_t begin = 0;           // first element in the group's flat buffers
  // Whether this rank's sum group counts the slice in norms. Several groups may hold the same slice; the one with the
  // lowest-numbered holder counts it, by its owners (owner, below). Checkpoints are written by all holders, each a
  // part.
  bool counted = false;
  std::int64_t elements() const { return size[0] * size[1]; }
};

// What has a number of an optimizer's state: each element of a parameter, each row, each column, or all of it.
enum class StateOver { elements, rows, columns, parameter };

// State of one name that the optimizer keeps for the elements of a group which this rank owns (orthant/optimizer.h), or
// for what else `over` says.
struct ParamState {
  // Owned elements [begin, begin + count), counted from ParamGroup::owned_begin on, lie from `at` on in `values`.
  struct Run {
    std::int64_t begin = 0, count = 0, at = 0;
  };
  // Not over elements: the numbers of this rank's slice of params[param], all of its rows, say, lie from `at` on.
  struct Numbers {
    std::size_t param = 0;
    std::int64_t count = 0, at = 0;
  };
  std::string name;          // "moment1"; those of a group that are stored in 8 bits and those that are not stand apart
  DType dtype = DType::f32;  // of the numbers
  StateCode code = StateCode::none;  // how they are stored
  // Owned where every parameter of the group has it, else those elements alone; not over elements: all `numbers`.
  std::int64_t elements = 0;
  // [elements]. With a code u8 [elements + elements / state_block]: all codes, then the blocks' exponents.
  Tensor values;
  std::vector<Run> runs = {};  // in order; none where it is not over elements
  StateOver over = StateOver::elements;
  std::vector<Numbers> numbers = {};  // none where it is over elements
  std::int64_t bytes() const {
    return code == StateCode::none ? elements * static_cast<std::int64_t>(size_of(dtype))
                                   : elements + elements / state_block;
  }
  // Where the state of owned elements [begin, begin + count) begins in `values`; -1 if they have none. REQUIRES: one
  // run holds all of them.
  std::int64_t place(std::int64_t begin, std::int64_t count) const {
    for (const Run& run : runs) {
      if (begin >= run.begin && begin + count <= run.begin + run.count) {
        return run.at + begin - run.begin;
      }
    }
    return -1;
  }
  // The state of these elements; undefined if they have none. REQUIRES: it has no code.
  Tensor slice(std::int64_t begin, std::int64_t count) const {
    const std::int64_t at = place(begin, count);
    return at < 0 ? Tensor() : values.slice(at, {count});
  }
  // Elements [at, at + count) of `values`, whole blocks. REQUIRES: it has a code.
  Tensor codes(std::int64_t at, std::int64_t count) const { return values.slice(at, {count}); }
  Tensor exponents(std::int64_t at, std::int64_t count) const {
    return values.slice(elements + at / state_block, {count / state_block});
  }
};

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

// How the ranks of a group's sum hold a tensor that is remembered from step to step, and what becomes of it in another
// layout.
//   owned:    f32 [owned_elements], as the optimizer's moments: each rank has the part of its range. Any layout loads
//             it. Replicas hold the same bits.
//   summed:   f32 [padded]: each rank has one of its own, and they add up, as what compression left over does. In the
//             same layout each rank gets its own back; in another one the first gets the sum and the others zeros.
//   per_rank: any dtype, the shape of its spec: of the rank alone. In another layout it is dropped, and that is said.
enum class StateKind { owned, summed, per_rank };

struct StateSpec {
  std::string name;  // "residual"; one of a plugin's own
  StateKind kind = StateKind::owned;
  Shape shape = {};          // per_rank only
  DType dtype = DType::f32;  // per_rank only
};

// A state as a group holds it.
struct PluginState {
  std::string name;  // of the checkpoint: "plugins/PLUGIN/residual"
  StateKind kind = StateKind::owned;
  Tensor tensor;
  // Its values came with the checkpoint that was loaded. False at the start, and where the checkpoint had none: zeros.
  bool restored = false;
  Shape shape = {};          // as StateSpec
  DType dtype = DType::f32;  // as StateSpec
};

struct ParamGroup : Holding {
  int id = 0;
  DType grad_dtype = DType::f32;  // of grad and owned_grad: bf16 with optimizer.gradient_dtype, but f32 if it is frozen
  std::string name;               // "layer 3 experts"
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
  std::int64_t elements = 0;

  // Gradients are summed over these ranks (size 1: none to sum). Used on one stream only: the Keeper's that sums,
  // else the main one.
  Group* sum = nullptr;

  // Where owned ranges may begin and end: at multiples of so many elements. More than 1 where states are stored in
  // blocks (state_code.h): a keeper that cuts one is refused.
  std::int64_t share_unit = 1;

  // --- buffers
  Tensor weight;        // compute dtype [padded]; may be undefined between Keeper::release and acquire
  Tensor owned_weight;  // compute dtype [owned]; a part of weight where that is whole
  Tensor grad;          // grad_dtype [padded], and while a layer runs f32; may be undefined outside a backward pass
  Tensor owned_grad;  // grad_dtype [owned], of the whole batch from whole_grads on; a part of grad where that is whole
  Tensor master;      // f32 [owned]; owned_weight itself where that is f32, in a frozen group, or where
                      // optimizer.master_weights is "none": bf16 then
  std::vector<ParamState> states;          // the optimizer's and the weights' average (weight_average.h)
  std::vector<PluginState> plugin_states;  // Keeper::state, in the order of the chain

  // --- where what is acquired lives; null: on the device, in the order of the main stream
  Stream* grad_stream = nullptr;   // owned_grad, from acquire(whole_grad) to its release
  Stream* state_stream = nullptr;  // owned_grad and what belongs to the state, while it is acquired
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

  // --- the step's own notes
  // grad and owned_grad are made when a step first adds to them, and are free behind the update
  // (optimizer.in_backward).
  bool brief_grad = false;
  bool grad_empty = true;  // nothing has been added to grad: what it holds is overwritten
  bool summed = false;     // a keeper sums it in this step

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
