// The six places where an axis of parallelism, or an offload, may touch a training step.
//
// Plugin::plan makes the implementations, and the Plan owns them. They run on the rank's own thread. Every member of a
// group meets the same calls in the same order. Only a Keeper may remember anything from step to step, because only a
// Keeper's state is saved.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/error.h>
#include <orthant/keeper.h>
#include <orthant/ops.h>
#include <orthant/param.h>

namespace orthant {

enum class Side { enter, leave };

// The place of a boundary: entering or leaving a region of a block.
struct Site {
  Region region;
  Side side;
  bool operator==(const Site&) const = default;
};
std::string name_of(const Site& site);  // "entering attention"

// Which ranks hold different tensors on one side of a site. An axis that splits the batch, the positions or the layers
// in region `tokens` gives each of its ranks a tensor of its own; an axis that splits `own` there does so too (a part,
// or an addend of a sum). The ranks of all other axes hold the same tensor.
struct Sharing {
  Region tokens;
  std::optional<Dim> own = {};
};

// A site that tensors cross. In a forward pass Plan::cross takes them from `before` to `after`; in a backward pass
// Plan::cross_back takes their gradients the other way. With memory.recompute = "full" the forward crossings of a block
// come a second time before its backward ones, but for {router, leave}: routing is not decided twice. Without it what
// enters attention, ffn or experts may come a second time within the backward pass, on another stream of the rank,
// where it has more elements behind the boundary than before it. docs/guides/plugins.md prints the table.
struct SiteInfo {
  enum class Columns { width, heads, choices };  // d; h c of this rank's heads; K
  Site site;
  const char* tensor;  // what crosses, in words
  const char* shape;   // T: the rows that this rank has on that side
  Columns columns;
  bool compute_dtype;  // else f32
  int times;           // tensors that cross in one forward pass of such a layer
  const char* layers;  // which layers have the site
  Sharing before, after;
};
// All sites that some tensor crosses in some model, in the order of a forward pass.
std::span<const SiteInfo> sites();

// 1. A conjugate pair (Megatron's f and g): backward is the adjoint of forward, <f(x), y> = <x, f*(y)>.
class Boundary {
 public:
  virtual ~Boundary() = default;
  virtual Tensor forward(Tensor x, Stream& s) = 0;  // parts of a sum may be added up in place, here and below
  virtual Tensor backward(Tensor dy, Stream& s) = 0;
  // The same of rows of a further token space (Plan::spaces), for one that looks at positions. By default those above.
  virtual Tensor forward_in(int space, Tensor x, Stream& s);
  virtual Tensor backward_in(int space, Tensor dy, Stream& s);
};

// How many packed rows go where in one layer and micro-batch.
struct ExchangePlan {
  std::vector<std::int64_t> send;     // [E] rows that this rank has for each expert
  std::vector<std::int64_t> receive;  // [ranks * local experts], rank-major: rows that come in
  std::vector<std::int64_t> local;    // [local experts] rows of each local expert: the column sums of receive
  std::vector<std::int64_t> own;      // whatever else the exchange needs to know
};

// 2. The token dispatcher: it takes packed token rows to the ranks that hold their experts, and back. Rows travel in C
// chunks. With L experts on every rank, chunk c is that of the local experts [c L / C, (c + 1) L / C). One chunk
// travels on the main stream. Several chunks travel on a stream of their own, both ways, and those of one direction in
// order.
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;
  virtual int chunks() const { return 1; }  // divides the local experts
  // Whether every rank sends every expert the same number of rows, empty ones among them. Nobody then needs to read
  // counts, and plan_equal() is called instead of plan(). Only with a capacity.
  virtual bool equal_blocks() const { return false; }
  // Exchanges counts; rows_of_expert i32 [E]. Called once for each layer and micro-batch; the backward pass uses the
  // same plan again. This is the one place of a step where the host waits for counts of rows. On an asynchronous device
  // `s` is a stream beside the main one. The exchange enqueues on `s` all that leads to the counts, then calls
  // `meanwhile` once, which gives the main stream something to do, and only then waits.
  virtual ExchangePlan plan(const Tensor& rows_of_expert, Stream& s, const std::function<void()>& meanwhile) = 0;
  // The plan of equal blocks: every rank sends each of `experts` experts `rows` rows. Nothing is exchanged.
  virtual ExchangePlan plan_equal(std::int64_t /*experts*/, std::int64_t /*rows*/) {
    fail("this exchange has no equal blocks");
  }
  // Sends the rows of a chunk among `rows` [sum send, d], which are in expert order. They arrive in `to` [rows of the
  // chunk's local experts, d], in order of (local expert, source rank).
  virtual void to_experts(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) = 0;
  // The adjoint: sends the rows of a chunk's local experts back to their places in `to` [sum send, d]. Other rows of
  // `to` stay as they are.
  virtual void to_tokens(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) = 0;
};

// 3. Who holds parameters, gradients and optimizer state, and who sums gradients: Keeper (keeper.h).

// What a layer's backward needs from its forward: backward pops, in reverse order, what forward pushed.
struct Saved {
  std::vector<Tensor> tensors;
  std::vector<ExchangePlan> plans;

  void push(Tensor t) { tensors.push_back(std::move(t)); }
  // Errors: Error if nothing is left.
  Tensor pop() {
    require(!tensors.empty(), "a layer's backward takes more than its forward saved");
    Tensor t = std::move(tensors.back());
    tensors.pop_back();
    return t;
  }
};

// One call of a stash. A layer is a link of the chain, by its number (orthant/model.h).
struct StashCall {
  enum class Kind { put, take };
  Kind kind;
  int layer, micro_batch;
  bool operator==(const StashCall&) const = default;
};

// 4. Activations between forward and backward: offload. Stashes form a chain in the order of the plugins. The core
// calls the first; each hands what it does not keep to next(); the core's own is the last and keeps the rest.
//
// In training a layer's forward ends with put, and its backward begins with the one take of the same layer and
// micro-batch. In validation neither is called. The tensors of `saved` may be undefined, may be views, and may share
// memory with each other. Nobody writes to them between put and take, and take gives them back with equal bytes, shapes
// and order.
class Stash {
 public:
  virtual ~Stash() = default;
  // Before the first put of a step: all puts and takes of this rank's step, in their order. What an earlier step that
  // failed has left is to be dropped.
  virtual void begin_step(std::span<const StashCall> calls, Stream& s) { next().begin_step(calls, s); }
  // All that writes `saved` is enqueued on `s`, and may not be done: another stream waits for s.record() before it
  // reads.
  virtual void put(int layer, int micro_batch, Saved saved, Stream& s) {
    next().put(layer, micro_batch, std::move(saved), s);
  }
  // What it returns is read by work that is enqueued on `s` afterwards: `s` waits for the stream that has written it.
  virtual Saved take(int layer, int micro_batch, Stream& s) { return next().take(layer, micro_batch, s); }

  // Plan::freeze calls it, once, before all other calls. `next` lives as long as the plan.
  virtual void set_next(Stash& next) { next_ = &next; }

 protected:
  Stash& next() const {
    require(next_ != nullptr, "this stash is not in a plan's chain, or is its last");
    return *next_;
  }

 private:
  Stash* next_ = nullptr;
};

// 5. A pure function: which stage holds which layers, and in which order a stage works. A layer is a link of the chain,
// by its number (orthant/model.h).
enum class Op { load, recv_x, forward, send_x, recv_dx, backward, send_dx, finish_grads };
struct Instr {
  Op op;
  int chunk = 0, micro_batch = 0;
  bool operator==(const Instr&) const = default;
};
class Schedule {
 public:
  virtual ~Schedule() = default;
  // Cuts the chain of layers into stages * v pieces (virtual stages). Piece k is chunk k / stages of stage k % stages.
  // Returns the first layer of each piece, and at the end the number of layers. cost: the work of each layer, relative.
  // Errors: ConfigError.
  virtual std::vector<int> cut(std::span<const double> cost, int stages) const = 0;
  // What one stage does in one step; asked for all stages before ranks start, and for its own in every step. A piece
  // takes x from the piece before it, and gives dx back to it. They travel by recv_x, send_x, recv_dx and send_dx
  // between stages, and by themselves within a stage. finish_grads comes last.
  virtual std::vector<Instr> steps(int stage, int stages, int micro_batches) const = 0;
};

// What the heads of a layer have of their own in softmax(QK')V: see Stream::attention_sinks. Undefined: no sinks.
struct HeadSinks {
  Tensor weight;  // f32 [h]
  Tensor grad;    // f32 [h], +=; in backward only, undefined where nobody wants it
};

// 6. softmax(QK')V on a slice of positions. Tensors are those of Stream::attention, or of Stream::attention_block where
// keys are of another token space than queries (shape.space, shape.kv_space) but for o, which has q's dtype; `first` is
// [2, T_q] then. `saved` carries what backward needs. With sinks they join the softmax over all keys, once, after
// whatever blocks have been merged. shape.block says which block of the model asks.
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first, const HeadSinks& sinks,
                         const AttentionShape& shape, Saved& saved, Stream& s) = 0;
  struct Gradients {
    Tensor dq, dk, dv;
  };
  virtual Gradients backward(const Tensor& d_o, const Tensor& first, const HeadSinks& sinks,
                             const AttentionShape& shape, Saved& saved, Stream& s) = 0;
};

}  // namespace orthant
