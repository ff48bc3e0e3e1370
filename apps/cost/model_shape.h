// What a step works on and how it is divided: the sizes of a model, and a layout of ranks. Values without behaviour;
// who reads a configuration, a CSV file or a search space fills them in.
//
// Thread safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace orthant::cost {

// A decoder of equal layers. Sizes are counts of elements.
struct ModelShape {
  int layers = 1;
  double hidden = 0;
  double ffn = 0;  // inner size of a dense FFN; 0 where every layer has experts only
  int heads = 1;
  int kv_heads = 1;
  double head_size = 0;    // of queries and keys
  double value_size = 0;   // of values; 0: head_size
  double query_rank = 0;   // latent attention: rank of the queries' product; 0: none
  double kv_rank = 0;      // latent attention: rank of keys and values; 0: none
  double rotary_size = 0;  // latent attention: the part of head_size that positions turn
  double sequence = 0;     // tokens
  double vocabulary = 0;   // rows of the embedding, padding not counted
  bool gated = false;      // three matrices an FFN, not two
  bool tied = true;        // one matrix for embedding and output
  bool biases = true;      // products add vectors
  bool learned_positions = false;
  int experts = 0;  // routed; 0: a dense model
  int top_k = 0;
  double expert_ffn = 0;  // inner size of one expert
  double shared_ffn = 0;  // inner size of all shared experts together
  int dense_layers = 0;   // the first so many layers of a routed model have no experts
  int routed_every = 1;   // and of the others block i has some where (i + 1) % routed_every == 0
  int extra_layers = 0;   // multi-token prediction: blocks after the last layer, each with a head
  double window = 0;      // every second layer attends to so many positions at most; 0: all to all before them
};

inline constexpr double half_bytes = 2;  // of an element of the usual type, bf16 or fp16

// selective: the core of attention. activation: what the activation of a dense FFN gives.
enum class Recompute { none, selective, full, activation };
enum class Precision { fp32, half, fp8, fp4 };  // of the large products

// Who takes part in the experts' work of a tensor group. parts: each rank sends its part of the tokens, and
// `expert_tensor` consecutive ranks gather what they share an expert of (Megatron). split: all ranks send all tokens,
// each for its own channels of every expert. folded: each rank sends its part of the tokens to whole experts.
enum class TensorExperts { parts, split, folded };
enum class Exchange { best, one_level, two_levels };  // best: the faster one, rows sent once to a node

enum class Axis { tensor, context, data, pipeline };

// Ranks that are `stride` apart; several: their combinations.
struct Span {
  int size = 1, stride = 1;
};
struct Spans {
  std::array<Span, 4> of = {};
  int count = 0;
  void add(int size, int stride) { of[static_cast<std::size_t>(count++)] = {size, stride}; }
};

// Ranks and their work. REQUIRES: ranks == tensor * pipeline * context * data(); sizes are positive.
struct Layout {
  int ranks = 1;
  int tensor = 1;
  int pipeline = 1;
  int chunks = 1;           // pieces of a stage: interleaved
  std::vector<int> blocks;  // of each piece; empty: as even as can be, and those in the middle get what is left over
  int context = 1;          // ranks that share a sequence's positions
  int expert = 1;
  int expert_tensor = 1;     // ranks that share one expert
  int zero = 0;              // stage 0 to 3
  int optimizer_copies = 1;  // of the divided states: groups of data ranks that each hold all of them
  double global_batch = 1;   // sequences
  double micro_batch = 1;    // sequences of one rank
  Recompute recompute = Recompute::none;
  bool sequence_parallel = false;  // norms and sums divided over `tensor`
  bool fused_attention = true;     // scores are never written to memory
  bool overlapped = true;          // gradients travel while the backward pass runs
  bool narrow_gradients = false;   // 2 bytes a gradient, not 4
  bool zero_bubble = false;        // the backward pass in two, for inputs and for weights
  bool all_at_once = false;        // GPipe
  bool recorded = false;           // passes are recorded graphs: one launch each
  bool batched_experts = false;    // rows of experts are padded to a capacity: one product for all experts of a rank
  bool hidden_exchange = false;    // tokens travel beside the work of another micro-batch or chunk
  bool once_a_node = false;        // exchange in two levels: a token is sent once to each node that has experts of it
  bool ulysses = false;            // positions are traded for heads; else keys and values pass all ranks
  bool layered = false;            // all micro-batches pass a layer before one passes the next: a gather, a sum a layer
  bool sums_each = false;          // ZeRO stage 2: gradients of every micro-batch are summed by themselves
  bool host_states = false;        // optimizer states, and their update, in the host's memory
  bool light_experts = false;      // what the activation of an expert gives is always computed again
  int exchange_chunks = 1;         // parts in which rows travel to experts: one travels beside another's products
  Exchange exchange = Exchange::best;
  TensorExperts tensor_experts = TensorExperts::parts;
  Precision precision = Precision::half;
  double state_bytes = 0;    // of a parameter, in the optimizer; 0: master weight and two moments in fp32
  double libraries = 130e6;  // bytes that libraries keep for themselves
  std::array<Axis, 4> order = {Axis::tensor, Axis::context, Axis::data, Axis::pipeline};  // innermost first

  double data() const { return static_cast<double>(ranks) / tensor / pipeline / context; }
  double expert_data() const { return static_cast<double>(ranks) / pipeline / expert / expert_tensor; }
  double micro_batches() const { return global_batch / data() / micro_batch; }
  int size_of(Axis axis) const;
  int stride_of(Axis axis) const;
  Spans gradient_spans() const;                         // ranks that hold the same dense parameters
  Spans expert_spans() const;                           // ranks that share the experts out
  Spans expert_data_spans() const;                      // ranks that hold the same experts
  std::vector<int> blocks_of_pieces(int layers) const;  // `blocks`, or what stands for it
};

// Who gets the choices of a routed layer. Balanced where `load` and `busiest` are empty and `skew` is 1.
struct Routing {
  double skew = 1;  // the busiest rank's choices over the mean
  // Recorded: [micro-batch][expert] choices; used in turn, from the first again.
  std::vector<std::vector<double>> load = {};
  // Recorded, layer by layer: [micro-batch][routed layer] the busiest rank's choices over the mean; both used in turn.
  // Comes before `load`.
  std::vector<std::vector<double>> busiest = {};
  bool recorded() const { return !load.empty() || !busiest.empty(); }
};

// The busiest expert rank's choices over the mean, in one micro-batch; of all layers the mean. REQUIRES: expert divides
// the number of experts.
double imbalance(const Routing& routing, int experts, int expert, int micro_batch);

}  // namespace orthant::cost
