// ModelKind: what a model is made of, as a chain of links. A noun of the catalogue: `model.kind` names one.
//
// A model is a chain: the links run one after the other, and each passes tensors on to the next. A kind says what the
// links are, as data, and makes the layer of one link. From the data the core does the rest under any layout: it cuts
// the chain into the stages of a pipeline, slices, shards, sums and saves the parameters, and sends from stage to stage
// what is alive at the cut. Links have numbers, from 0 on, and names. Nobody but the kind knows what lies where.
//
//   class Mine final : public ModelKind { ... };
//   catalogue.add<ModelKind>("mine", "One sentence.", std::make_shared<Mine>());   // in Plugin::add_to
//
// A kind may take links and layers of another one, which the catalogue has: examples/plugins/reminded.cpp takes those
// of the core's "decoder", and passes a second tensor through them.
//
// Thread safety: a ModelKind is shared by all ranks of a process; its methods are const and safe to call at the same
// time. A Layer belongs to one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <orthant/abi/model.h>
#include <orthant/keys.h>
#include <orthant/param.h>
#include <orthant/plan.h>
#include <orthant/seams.h>
#include <orthant/step_context.h>

namespace orthant {

struct Settings;

// A tensor that a link passes on: [T, columns], with T the rows of its space that a rank holds in Region::norm. Its
// gradient has the same shape and dtype.
struct Slot {
  std::string name;  // "x"; different ones in a link
  std::int64_t columns = 0;
  DType dtype = DType::f32;  // f32 or bf16: compute_type(settings) for activations
  int space = 0;             // its number in ModelKind::spaces
};
// What is alive at one place of the chain: a tensor for each slot of Link::passes, in its order.
using Bundle = std::vector<Tensor>;

// Parameters that lie in one buffer, for each set of ranks that their gradients are summed over.
struct LayerSpecs {
  int layer = 0;           // the link's number. The core sets it
  std::string name;        // for people: "embedding", "layer 3", "layer 3 experts"
  bool experts = false;    // routed experts: their gradients are overwritten, not added to
  bool looked_up = false;  // rows are looked up in its matrices, which thus have no adapter
  std::vector<ParamSpec> params =
      {};  // in the order of the buffer. Nothing in ParamSpec::layers: this link alone uses it
};

// One place in the chain.
struct Link {
  std::string name;  // for people and messages, different for each link: "embedding", "layer 3", "head"
  std::vector<LayerSpecs> parameters = {};
  // Of one token's forward pass: operations of products and attention (a product of [1, k] and [k, n] is 2 k n), and
  // elements that norms, residual sums and lookups touch. Stages are cut by both.
  double flops = 0, touched = 0;
  // Operations that a backward pass computes again under memory.recompute = "selective", and "full".
  double again_selective = 0, again_full = 0;
  int block = -1;           // its number among the chain's blocks, from 0; -1: it is none
  std::string router = {};  // of a block with routed experts: what its router's parameters begin with; empty: none
  int space = 0;            // whose tokens its router routes: groups, capacity and counts are of this space
  bool objective = false;   // something is learned from it (train.objective): a head
  std::vector<Slot> passes = {};  // what is alive behind it. Empty: nothing, behind the last link alone
  // --- the core sets these
  int number = 0;
  int routed = -1;  // its number among the links with a router; -1: it has none
};

// The layer of one link on one rank: forward and backward written out; no tape. One that wraps another's layer hands on
// what that says of its groups.
class Layer {
 public:
  virtual ~Layer() = default;
  // x: what the link before passes on; empty in the first link. Tokens are those of ctx.batch, of a further space those
  // of ctx.in(space).batch. Returns what its own link passes on. Pushes onto `saved` what backward pops, in reverse.
  // What enters stays as it is, and may leave again. In training a layer with an objective hands its loss in here.
  virtual Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) = 0;
  // dy: of what it passed on, which it may overwrite. Returns the gradients of what entered. Adds to those of its
  // parameters; where its link is no block, only to those that somebody wants (ParamRef::wants_grad).
  virtual Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) = 0;
  // The groups to whose gradients its forward adds already.
  virtual std::vector<ParamGroup*> grown_in_forward() const { return {}; }
  // The parameter whose gradient it overwrites where ParamGroup::grad_empty says that nothing was added yet; null:
  // none.
  virtual const ParamRef* overwritten() const { return nullptr; }
};

class ModelKind {
 public:
  static constexpr const char* noun = "model";
  virtual ~ModelKind() = default;
  virtual std::vector<KindKey> keys() const { return {}; }  // keys.h; in [model]
  // By default nothing. What `links` throws is told as well, at model.kind.
  virtual std::vector<Refusal> refusals(const Settings&) const { return {}; }
  // The token spaces. Space 0 is that of data.sequence_length, which labels stand beside; a source gives the tokens of
  // the others (SequenceDocument::spaces). By default space 0 alone, of a decoder.
  virtual std::vector<Space> spaces(const Settings& settings) const;
  // The chain of the whole model, whatever a rank holds of it. A pure function of the settings. The core adds adapters,
  // rates and what is frozen. REQUIRES: names that differ; blocks numbered 0, 1, ... in order; a router in blocks only;
  // an objective in one link at least. Errors: ConfigError.
  virtual std::vector<Link> links(const Settings& settings) const = 0;
  // The groups of ranks that its own layers use (Plan::group), for the caller's rank. The core makes them on every rank
  // in this order, before any layer, whether the rank's stage has such a layer or not. Those of heads, routers and
  // parts are the core's. Also asked before anything starts. Errors: ConfigError for a layout that the kind cannot do.
  virtual std::vector<GroupSpec> groups(const Plan&) const { return {}; }
  // The layer of a link of `links`, as the core has completed it. Called on the ranks whose stage has the link, which
  // hold `parameters`; those and the plan outlive the layer. Never null.
  virtual std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const = 0;
};

// run.dtype: f32 or bf16.
DType compute_type(const Settings& settings);

}  // namespace orthant
