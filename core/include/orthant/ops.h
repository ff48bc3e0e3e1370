// Stream: an in-order queue of operations on one device. Everything that touches tensor memory is here.
//
// Conventions. Shapes are given as [rows, columns]; T tokens, d model width, f FFN width, V vocabulary, E experts,
// K experts per token, R packed rows, h heads, c channels of a head. "f" dtype means f32 or bf16 alike for all such
// arguments of one call unless said otherwise; arithmetic and sums are fp32 or better. Outputs are written whole
// (never read before) unless the comment says "+=". Inputs and outputs do not overlap unless "in place" is said.
// Sums run in a fixed order: two calls with the same inputs give the same bits.
//
// Errors: a wrong shape or dtype throws Error naming the operation and both shapes, before anything is written.
// Thread safety: one thread at a time per Stream; different streams of a device may run concurrently.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include <orthant/device.h>
#include <orthant/operation.h>
#include <orthant/random.h>
#include <orthant/settings.h>
#include <orthant/tensor.h>

namespace orthant {

// C = op(A) op(B) + beta * C. A, B, C are 2-D; op is transpose where the flag says.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  float beta = 0.0f;  // 0 or 1
};

struct AttentionShape {
  std::int64_t batch = 0;      // sequences
  std::int64_t positions = 0;  // of each sequence
  std::int64_t heads = 0;      // query heads
  std::int64_t kv_heads = 0;   // divides heads
  std::int64_t head_dim = 0;
  std::int64_t kv_positions = 0;  // keys of each sequence, for blocks of attention; 0: as positions
};

struct RotaryShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double theta = 10000;  // 0: no rotation, only the split
};

struct AdamW {
  float lr, beta1, beta2, eps, weight_decay;
  float correction1, correction2;  // 1 - beta^step
};

struct Sgd {
  float lr, momentum, weight_decay;
};

// Where a slice lies in its global tensor: up to 2 dimensions, row-major.
struct SliceMap {
  std::int64_t row_begin = 0, column_begin = 0, global_columns = 0;
};

// A run of rows of a segmented copy.
struct RowRun {
  std::int64_t from, to, rows;
};

// The routing of one MoE layer's tokens on one rank (router/). What gates differ in are properties here; a gate sets
// them (gate.h).
struct GateConfig {
  ScoreKind score = ScoreKind::softmax;
  std::int64_t experts = 0, top_k = 1;
  bool normalize_weights = true;     // of a token's choices: their scores over their sum, else their scores
  std::int64_t counted_choices = 0;  // a token's first so many choices enter `chosen`; 0: all
  bool experts_choose = false;       // else each token chooses top_k experts
  bool second_by_chance = false;     // of two choices the second is kept with probability 2 * weight (GShard)
  bool first_choices_first = false;  // where seats go by probability: first choices before all others (GShard)
  std::int64_t expert_groups = 1, groups_per_token = 1;  // choose_experts
  double capacity_factor = 0;                            // 0: dropless
  std::int64_t group_tokens = 0;                         // tokens of one GShard group; rows come in whole groups
  DropPolicy drop_policy = DropPolicy::position;
  // Packed rows that dispatch_plan sets apart for each expert; 0: as many as it gets. With a capacity, a constant that
  // suffices is known without reading counts, and ranks can exchange blocks of one size.
  std::int64_t rows_per_expert = 0;
};

// Where the choices of T tokens lie among R packed rows: Stream::dispatch_plan.
struct Dispatch {
  Tensor row;     // i32 [T, K]
  Tensor source;  // i32 [R, 1]
  Tensor offset;  // i32 [E + 1]
  Tensor weight;  // f32 [T, K]
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  // The device's own handle (a cudaStream_t), for communicators that work on it; null where there is none.
  virtual void* native() const { return nullptr; }
  // Before work on these tensors is given to native(): a side stream orders and holds their memory for it as it does
  // for its own operations, until its next call. Nothing is allocated between this and that work.
  virtual void uses(std::initializer_list<Tensor> /*tensors*/) {}

  // --- order
  virtual std::shared_ptr<Event> record() = 0;
  virtual void wait(const std::shared_ptr<Event>& event) = 0;  // later work of this stream waits; the host does not
  // Runs `work` on the host in this stream's order (a communicator's collective, say). It may use HostViews.
  virtual void host(std::function<void()> work) = 0;
  virtual void synchronize() = 0;  // the host waits; rethrows a failure of the work
  // Enqueues what `work` enqueues on this stream. A device may record it and launch it as one (CUDA graphs).
  // REQUIRES: nothing in `work` waits for the device (download, synchronize, host), no other stream takes part.
  virtual void together(const std::function<void()>& work) { work(); }

  // --- memory
  virtual void copy(const Tensor& to, const Tensor& from) = 0;  // equal dtype and element count
  // Among f32, bf16 and f64; and between f32 or bf16 and i8, f8_e4m3 or f8_e5m2. Equal element count. To the nearest
  // value, ties to even. What is too large for one of the last three becomes its largest number, infinity too; NaN
  // becomes NaN, or 0 in i8.
  virtual void cast(const Tensor& to, const Tensor& from) = 0;
  virtual void fill(const Tensor& t, double value) = 0;  // any dtype
  virtual void upload(const Tensor& to, const void* host) = 0;
  virtual void download(void* host, const Tensor& from) = 0;  // complete when it returns
  // Copies between a tensor of Device::host_empty and one of the device, of equal dtype and element count, in this
  // stream's order: they return at once where the device is asynchronous. To read the bytes on the host, wait for an
  // event recorded behind the copy first.
  virtual void upload(const Tensor& to, const Tensor& from_host) = 0;
  virtual void download(const Tensor& to_host, const Tensor& from) = 0;
  // x f [n] in blocks of `block` elements (the last may be shorter): scale f32 [blocks] = the largest |x| of the block
  // / the largest number of q's dtype; q i8, f8_e4m3 or f8_e5m2 [n] = x / scale, rounded as by cast. A block of zeros
  // has scale 0 and q 0; one with an x that is not finite has scale NaN and q 0.
  virtual void quantise(const Tensor& q, const Tensor& scale, const Tensor& x, std::int64_t block) = 0;
  // x = q * scale.
  virtual void dequantise(const Tensor& x, const Tensor& q, const Tensor& scale, std::int64_t block) = 0;
  // Runs of rows (of the outermost dimension) of `from` to rows of `to`.
  virtual void copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) = 0;
  // to [J, I, C] <- from [I, J, C], any dtype: to[j, i] = from[i, j]. Its own adjoint, and its own inverse.
  virtual void swap_outer(const Tensor& to, const Tensor& from) = 0;

  // --- elementwise
  virtual void add(const Tensor& y, const Tensor& x) = 0;            // y += x; f, mixed dtypes allowed; or y i64, x i32
  virtual void scale(const Tensor& y, float a) = 0;                  // y *= a
  virtual void multiply(const Tensor& y, const Tensor& x) = 0;       // y *= x, element by element; f, mixed allowed
  virtual void sum_squares(const Tensor& out, const Tensor& x) = 0;  // out f64[1] += sum x^2
  virtual void sum(const Tensor& out, const Tensor& x) = 0;          // out f64[1] += sum x (f32)
  virtual void init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) = 0;  // f32 [r, c]
  // y[t, j] = x[t, j] * keep(key, token[t] * d_global + column_begin + j) / (1 - p). token i64[T]. y may be x.
  virtual void dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
                       const SliceMap& at) = 0;
  // y[t, j] = x[t, j] * uniform(1 - e, 1 + e), keyed like dropout. y may be x. (Switch router jitter.)
  virtual void jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) = 0;

  // --- matrices. f inputs of equal dtype; C f32 or bf16.
  virtual void gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) = 0;
  // For e in [0, E): rows offset[e] .. offset[e + 1] of a [R, k] times b[e] (b [E, n, k], transposed when
  // how.transpose_b, else [E, k, n]) into the same rows of c [R, n]. offset i32 [E + 1], on the device, from 0 upwards,
  // none above R; rows of c from offset[E] on stay as they are. how.transpose_a must be false.
  // Errors: where the host can see them, offsets that descend or end above R; elsewhere they are cut off at R.
  virtual void grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) = 0;
  // c[e] (+)= a[rows of e]^T b[rows of e]; c f32 [E, m, n], a [R, m], b [R, n]. An expert without rows gets zero.
  virtual void grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, float beta) = 0;

  // --- norms. x, y [T, d]; weight, bias f32 [d] (bias undefined: none); stats f32 [T, 2] (mean, 1 / deviation).
  virtual void norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    NormKind kind, float eps) = 0;
  // dx += ; dweight, dbias f32 +=.
  virtual void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                             const Tensor& x, const Tensor& stats, const Tensor& weight, NormKind kind) = 0;

  // --- attention
  // qkv [T, (h + 2 kv) c] -> q [T, h c], k, v [T, kv c]; q and k rotated by position i32[T] (pairs (i, i + c/2), as
  // Llama and Mixtral); h or kv may be 0, its tensors then undefined. Source: Su et al., "RoFormer".
  virtual void split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                            const Tensor& position, const RotaryShape& shape) = 0;
  virtual void merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                     const Tensor& position, const RotaryShape& shape) = 0;
  // Causal softmax(q k' / sqrt(c)) v, blockwise. o as q; lse f32 [batch, h, positions]. first i32[T] (or undefined):
  // the first position of its sequence that a token may attend to (packed documents).
  virtual void attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& first, const AttentionShape& shape) = 0;
  virtual void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                  const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                                  const Tensor& first, const AttentionShape& shape) = 0;
  // Attention of some queries to some keys of their sequences, for parts of a sequence that meet one after another
  // (Liu et al., "Ring Attention with Blockwise Transformers"). q [T_q, h c], k and v [T_k, kv c] f;
  // T_q = batch * positions, T_k = batch * kv_positions. q_position i32 [positions], k_position i32 [kv_positions]: the
  // place of each row in its sequence, the same for every sequence of the batch, in any order. A query sees the keys
  // with first[t] <= k_position <= q_position; first i32 [T_q] or undefined (0).
  // o f32 [T_q, h c], whatever q's dtype: parts are merged in fp32. lse f32 [batch, h, positions]. A query that sees
  // nothing gets o = 0, lse = -infinity.
  virtual void attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                               const AttentionShape& shape) = 0;
  // Merges a partial result over other keys into (o, lse), in place: o and o_block f32 [T_q, h c], lse and lse_block
  // f32 [batch, h, positions]. Start from the first block's, or from o = 0, lse = -infinity.
  virtual void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                               const AttentionShape& shape) = 0;
  // The share of one block of keys in the gradients: o (as q) and lse are the final ones, merged over all blocks; d_o
  // as q. dq f32 [T_q, h c], dk and dv f32 [T_k, kv c], all three +=.
  virtual void attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                        const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                        const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                        const Tensor& first, const AttentionShape& shape) = 0;

  // --- FFN activation. h [T, n]; a [T, f]: relu, gelu (tanh form): n = f; swiglu: n = 2f, h = (gate | up) in columns,
  // a = silu(gate) * up.
  virtual void activation(const Tensor& a, const Tensor& h, Activation kind) = 0;
  virtual void activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) = 0;
  // Of packed rows r whose outputs are summed with weights, s = weight[source[r]]: a [R, f] = s act(h), dh [R, n] =
  // s act'(h) da, and dweight [T, K] f32 = <da[r], act(h[r])> at source[r], 0 where no row stands; da [R, f] is the
  // gradient as if s were 1. Rows with source -1: a and dh 0. source undefined: weight and dweight are [R, 1], row r's
  // at r. Paper: Guo et al., "SonicMoE" (2025): with it neither the experts' outputs nor their activations need to be
  // kept.
  virtual void weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight, const Tensor& da,
                                            const Tensor& h, const Tensor& weight, const Tensor& source,
                                            Activation kind) = 0;

  // --- embedding. y [T, d] f; table [V_r, d]: rows first_row .. first_row + V_r of the vocabulary; id i32[T] >= 0.
  // accumulate: y += instead of =. An id of a row that is not here gives 0 and gets no gradient: the slices' results
  // add up to the whole table's (Shoeybi et al., "Megatron-LM"). whole_table: the table is all there is, and an id
  // outside it is an error.
  static constexpr std::int64_t whole_table = -1;
  virtual void embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                         std::int64_t first_row = whole_table) = 0;
  virtual void embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id,
                                  std::int64_t first_row = whole_table) = 0;  // f32 dtable +=

  // --- loss. logits [T, V] f are replaced by their gradient scale * (softmax - onehot); loss f32[T] = -log p(label),
  // 0 and zero gradient where label i32[T] < 0. logits may be wider than the vocabulary only if exactly V columns.
  virtual void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) = 0;
  // The same where each rank holds some columns of the logits, [T, V_r] f: first_column .. first_column + V_r of the
  // vocabulary; only three numbers per token are exchanged (Shoeybi et al., "Megatron-LM").
  // stats f32 [T, 3] = (max, sum of exp(l - max), logit of the label) of these columns; the last is -infinity where the
  // label's column is not here (or label < 0).
  virtual void cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                   std::int64_t first_column) = 0;
  // stats f32 [ranks, T, 3]: those of all slices, in an order that is the same on every rank. loss and gradient as
  // cross_entropy of the whole rows; the loss is +infinity where no slice holds the label's column.
  virtual void cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                        const Tensor& stats, std::int64_t first_column, float scale) = 0;

  // --- router (router/). T tokens in whole groups of config.group_tokens, G of them; valid u8[T] (0: padding, not
  // routed); logits f32 [T, E]. Padding rows of every output are written: expert -1, weight 0, lse 0, row -1, dlogits
  // 0; what their logits hold does not matter.
  //
  // gate: expert i32 [T, K], greatest logit first, ties to the lower index; weight f32 [T, K]; lse f32 [T] = logsumexp
  // of the logits; and of each group, for its balance loss: chosen i32 [G, E], the tokens that chose each expert
  // *before* capacity (their first counted_choices); share f64 [G, E], the sum over valid tokens of each expert's share
  // of the token's scores, score / sum of the E scores.
  //   score: softmax: the softmax of the logits.  sigmoid: 1 / (1 + exp(-logit)), for deterministic choices of tokens
  //   (DeepSeek-AI, "DeepSeek-V3" (2024), equations 12 to 15 and 17 to 20).
  //   weight = score, over the sum of the K scores when normalize_weights (with K = 1 that is the constant 1).
  //   second_by_chance: K = 2; the second expert is kept where uniform(key, token[t]) < 2 * weight, else it is -1 with
  //   weight 0 (the first weight stays).
  //   experts_choose: the experts do (Zhou et al., "Mixture-of-Experts with Expert Choice Routing"). K = E, choice k
  //   is expert k or -1. Each expert takes the min(v, C) tokens of the group to which it is likeliest, C =
  //   max(1, ceil(factor * v / E)) of v valid tokens; ties to the lower token. weight = score. factor > 0.
  virtual void gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                    const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                    const RandomKey& key, const GateConfig& config) = 0;
  // The two halves of gate, for gates that choose in another way.
  // choose_experts: expert i32 [T, K], the K experts with the greatest score + bias[e], greatest first, ties to the
  // lower index; bias f32 [E], or undefined: by logit, as gate. Only experts of the token's groups_per_token best
  // groups can be chosen: there are expert_groups runs of equally many experts, and a group's worth is the sum of its
  // two greatest score + bias (ties to the lower group). Padding: -1. (DeepSeek-AI, "DeepSeek-V3" (2024), equation 16
  // and section 2.1.2.) REQUIRES: config.experts_choose and second_by_chance are false; expert_groups divides E and is
  // at most 64; the chosen groups have K experts.
  virtual void choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias, const Tensor& valid,
                              const GateConfig& config) = 0;
  // gate_choices: weight, lse, chosen and share as gate, of the choices in expert i32 [T, K]: distinct experts of a
  // token, in any order, or -1. The sum of normalize_weights runs over the experts that are chosen. Errors: where the
  // host can see it, an expert out of range; elsewhere it counts as -1 here and in gate_backward.
  virtual void gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                            const Tensor& expert, const Tensor& logits, const Tensor& valid,
                            const GateConfig& config) = 0;
  // bias f32 [E] += rate * sign(mean of load - load[e]), load being the sum of the rows of choices i64 [R, E]. Nothing
  // changes where *factor f32[1] is NaN. (Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for
  // Mixture-of-Experts" (2024), algorithm 1.)
  virtual void balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor, float rate) = 0;
  // Capacity and positions. Packed rows are ordered by (expert, token, k). row i32 [T, K]: the packed row of a kept
  // choice, else -1. source i32 [room, 1]: t * K + k of each packed row; -1 of rows that hold no choice. count i32 [E]
  // choices kept for each expert; dropped i32 [E] choices refused for capacity; offset i32 [E + 1]: the rows of expert
  // e are offset[e] .. offset[e + 1]. Weights of kept choices are not renormalised after drops. Rows are packed without
  // gaps, and room is T * K; or, with config.rows_per_expert = P > 0, those of expert e begin at e * P, offset[e] = e *
  // P, and room is E * P. REQUIRES: no expert keeps more than P choices. Errors: where the host can see them, more;
  // elsewhere those have no row. Each expert has C seats in each group: C = max(1, ceil(factor * K * v / E)), v the
  // group's valid tokens; exact, with factor rounded to millionths (router/rules/capacity.h). What an expert chose has
  // its seat: experts that choose drop nothing. Choices are seated in this order until the expert is full:
  //   position: all k = 0 choices of the group in token order, then all k = 1 choices, and so on.
  //   probability: greatest weight first (what is not above 0 last), ties to the lower token, then the lower k;
  //   first_choices_first: all first choices so, then all others.
  virtual void dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                             const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                             const GateConfig& config) = 0;
  // expert i32 [T, K] = -1 where row i32 [T, K] < 0, in place: what lost its seat counts as not chosen. For capacity
  // that was decided on whole groups before a rank takes its own tokens of them.
  virtual void keep_seated(const Tensor& expert, const Tensor& row) = 0;
  // rows [R, d] <- x [T, d] f: row r is token source[r] / K, or 0 where source is -1. R is rows' size; row [T, K] and
  // source, of R elements or more, are those of one dispatch_plan, whose choices have rows below R, here and below.
  virtual void pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) = 0;
  // dx [T, d] (accumulate: +=) sum over k, in order, of drows[row[t, k]].
  virtual void pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) = 0;
  // y [T, d] f = (accumulate: +=) sum over k, in order, of weight[t, k] * rows[row[t, k]]; 0 where nothing was kept.
  virtual void combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight,
                       bool accumulate) = 0;
  // drows[r] = weight[source[r]] * dy[token], 0 where source is -1; dweight f32 [T, K] = <dy[t], rows[row[t, k]]>, 0
  // where dropped. For layers of plugins: in the core's own, weights travel with the rows
  // (weighted_activation_backward).
  virtual void combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                                const Tensor& row, const Tensor& source, const Tensor& weight) = 0;
  // The routed experts of tokens that stay on this rank, from pack to combine (experts/expert_ffn.cpp, of the
  // operations above; a device may fuse them). x, y [T, d]; w_in [E, n, d], w_out [E, d, f]; h [R, n] is written for
  // the backward pass, which needs nothing else but x.
  virtual void expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                          const Dispatch& dispatch, Activation kind);
  // dx [T, d] =, dweight f32 [T, K] =, dw_in and dw_out f32: beta times what is there, plus the gradient.
  virtual void expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                                   const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                                   const Tensor& w_out, const Dispatch& dispatch, Activation kind, float beta);
  // Losses (router/rules/losses.h), for a group g with v_g valid tokens:
  //   L_g = E * sum_e f_e P_e, f_e = chosen[g, e] / sum of chosen[g], P_e = share[g, e] / v_g; 1 when balanced; f is a
  //   constant in the gradient. Experts that choose are balanced by construction: L_g = 1, gradient 0.
  // gate_losses: balance_loss f64[1] += sum over groups of v_g * L_g (a group of padding adds 0; the caller divides by
  // the global number of valid tokens); z_loss f64[1] += sum over tokens of lse^2.
  // gate_backward: dlogits f32 [T, E] = d(sum of dweight * weight) + aux_scale * d(sum_g v_g * L_g)
  //   + z_scale * d(sum_t logsumexp^2), each by logits.
  virtual void gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                             const Tensor& chosen, const Tensor& logits, const Tensor& valid, float aux_scale,
                             float z_scale, const GateConfig& config) = 0;
  virtual void gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen, const Tensor& share,
                           const Tensor& lse, const GateConfig& config) = 0;

  // --- optimizer. All f32 [n]; grad is multiplied by *factor f32[1] first; nothing changes where factor is NaN.
  // weight (f32 or bf16, may be master itself) receives the updated master.
  virtual void adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v, const Tensor& grad,
                     const Tensor& factor, const AdamW& how) = 0;
  virtual void sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                   const Tensor& factor, const Sgd& how) = 0;
  // The last step of an optimizer whose update u f32 [n] is made of other operations: master -= lr * (u +
  // weight_decay * master). Nothing changes where finite f32[1] is NaN.
  virtual void descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                       float weight_decay) = 0;
  // x /= sqrt(sum_squares f64[1]) + eps, f32, in place.
  virtual void normalize(const Tensor& x, const Tensor& sum_squares, float eps) = 0;
  // factor f32[1] = min(1, max_norm / sqrt(sum_squares)) (max_norm 0: 1); NaN where sum_squares f64[1] or loss f64[1]
  // is not finite.
  virtual void clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss, float max_norm) = 0;

  // --- an operation of a plugin's own (operation.h), in this stream's order.
  // Errors: Error naming it where a tensor is undefined, or there are too many; what `host` or `native` throws.
  virtual void apply(const OwnOperation& operation) = 0;
};

}  // namespace orthant
