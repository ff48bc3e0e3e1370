// Stream: an in-order queue of operations on one device. Everything that touches tensor memory is here.
//
// Shapes are [rows, columns]. Letters: T tokens, d width of the model, f width of the FFN, V vocabulary, E experts, K
// experts of a token, R packed rows, h heads, c channels of a head.
// Types: "f" stands for f32 or bf16, the same one for all such arguments of a call unless the comment says otherwise.
// Arithmetic and sums are fp32 or better.
// Outputs are written whole, and never read before, unless the comment says "+=". Inputs and outputs do not overlap
// unless the comment says "in place".
// Sums run in a fixed order: two calls with the same inputs give the same bits.
// Default bodies: an operation that is not pure is made of others (core/device/composed.cpp, experts/expert_ffn.cpp); a
// device has its own where that is faster. A new device begins with fallback_stream.h, and writes none of them.
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

#include <orthant/abi/operations.h>
#include <orthant/device.h>
#include <orthant/operation.h>
#include <orthant/operation_arguments.h>
#include <orthant/operation_kinds.h>
#include <orthant/random.h>
#include <orthant/state_code.h>
#include <orthant/tensor.h>

namespace orthant {

enum class ReduceOp;  // orthant/group.h

class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  // The device's own handle (a cudaStream_t), for communicators that work on it; null where there is none.
  virtual void* native() const { return nullptr; }
  // Called before work on these tensors is given to native(). A side stream then orders and holds their memory for that
  // work, as it does for its own operations, until its next call. REQUIRES: nothing is allocated between this call and
  // that work.
  virtual void uses(std::initializer_list<Tensor> /*tensors*/) {}

  // --- order
  virtual std::shared_ptr<Event> record() = 0;
  virtual void wait(const std::shared_ptr<Event>& event);  // later work of this stream waits; the host does not
  // Runs `work` on the host in this stream's order (a communicator's collective, say). It may use HostViews.
  virtual void host(std::function<void()> work) = 0;
  virtual void synchronize();  // the host waits; rethrows a failure of the work
  // Calls `work`, which enqueues operations on this stream. A device may record them and launch them as one (CUDA
  // graphs). REQUIRES: nothing in `work` waits for the device (download, synchronize, host), and no other stream takes
  // part.
  virtual void together(const std::function<void()>& work) { work(); }

  // --- memory
  virtual void copy(const Tensor& to, const Tensor& from);  // equal dtype and element count
  // Among f32, bf16 and f64; and between f32 or bf16 and i8, f8_e4m3 or f8_e5m2. Equal element count. To the nearest
  // value, ties to even. What is too large for one of the last three becomes its largest number, infinity too; NaN
  // becomes NaN, or 0 in i8.
  virtual void cast(const Tensor& to, const Tensor& from) = 0;
  virtual void fill(const Tensor& t, double value) = 0;  // any dtype
  virtual void upload(const Tensor& to, const void* host);
  virtual void download(void* host, const Tensor& from);  // complete when it returns
  // Copies between a tensor of Device::host_empty and one of the device, of equal dtype and element count, in this
  // stream's order: they return at once where the device is asynchronous. To read the bytes on the host, wait for an
  // event recorded behind the copy first.
  virtual void upload(const Tensor& to, const Tensor& from_host);
  virtual void download(const Tensor& to_host, const Tensor& from);
  // x f [n] in blocks of `block` elements (the last may be shorter): scale f32 [blocks] = the largest |x| of the block
  // / the largest number of q's dtype; q i8, f8_e4m3 or f8_e5m2 [n] = x / scale, rounded as by cast. A block of zeros
  // has scale 0 and q 0; one with an x that is not finite has scale NaN and q 0.
  virtual void quantise(const Tensor& q, const Tensor& scale, const Tensor& x, std::int64_t block) = 0;
  // x = q * scale.
  virtual void dequantise(const Tensor& x, const Tensor& q, const Tensor& scale, std::int64_t block) = 0;
  // to bf16 [r, c] <- from f32 [r, c], rounded by chance: to one of the two neighbours, so that it is right on average.
  // The number of element (i, j) is random_bits(key, its index in the global tensor, by `at`). What bf16 holds stays;
  // NaN and infinity too.
  virtual void stochastic_cast(const Tensor& to, const Tensor& from, const RandomKey& key, const SliceMap& at) = 0;
  // Optimizer state in 8 bits (state_code.h), by blocks of 32 columns; rounded by chance, as above.
  //   code      u8 [r, c]; c is a multiple of 32
  //   exponent  u8 [r c / 32]; 255: some x of the block is not finite, and all are NaN when they are decoded
  //   x         f32 [r, c]. StateCode::positive: what is below zero becomes zero
  virtual void encode_state(const Tensor& code, const Tensor& exponent, const Tensor& x, StateCode how,
                            const RandomKey& key, const SliceMap& at) = 0;
  // The reverse. x f32 [n], code u8 [n], exponent u8 [n / 32].
  virtual void decode_state(const Tensor& x, const Tensor& code, const Tensor& exponent, StateCode how) = 0;
  // Copies runs of rows of `from` to rows of `to`. A row is an entry of the outermost dimension.
  virtual void copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) = 0;
  // to [J, I, C] <- from [I, J, C], any dtype: to[j, i] = from[i, j]. Its own adjoint, and its own inverse.
  virtual void swap_outer(const Tensor& to, const Tensor& from);

  // --- elementwise
  virtual void add(const Tensor& y, const Tensor& x) = 0;            // y += x; f, mixed dtypes allowed; or y i64, x i32
  virtual void scale(const Tensor& y, float a);                      // y *= a
  virtual void multiply(const Tensor& y, const Tensor& x) = 0;       // y *= x, element by element; f, mixed allowed
  virtual void sum_squares(const Tensor& out, const Tensor& x) = 0;  // out f64[1] += sum x^2
  virtual void sum(const Tensor& out, const Tensor& x) = 0;          // out f64[1] += sum x (f32, bf16; f64: in order)
  // Of x f32 [r, c] the sum of each row, each column and all, added in f64 to rows f64 [r], columns f64 [c] and all f64
  // [1]; undefined: not wanted. how max: the largest of these and of what is there, NaN where any is.
  virtual void reduce_matrix(const Tensor& rows, const Tensor& columns, const Tensor& all, const Tensor& x,
                             ReduceOp how) = 0;
  virtual void init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) = 0;  // f32 [r, c]
  // y[t, j] = x[t, j] * keep(key, token[t] * d_global + column_begin + j) / (1 - p). token i64[T]. y may be x.
  virtual void dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
                       const SliceMap& at) = 0;
  // y[t, j] = x[t, j] * uniform(1 - e, 1 + e), keyed like dropout. y may be x. (Switch router jitter.)
  virtual void jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) = 0;

  // --- matrices. f inputs of equal dtype; C f32 or bf16.
  virtual void gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) = 0;
  // One product for each expert e: rows offset[e] .. offset[e + 1] of a [R, k], times b[e], give the same rows of c
  // [R, n]. b is [E, n, k] if how.transpose_b, else [E, k, n]. offset i32 [E + 1] lies on the device, begins with 0,
  // and ends with at most R. Rows of c from offset[E] on stay as they are. REQUIRES: how.transpose_a is false. Errors:
  // offsets that descend or end above R, if the host can see them; other devices cut them off at R.
  virtual void grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) = 0;
  // c[e] = beta c[e] + a[rows of e]^T b[rows of e]; c f32 [E, m, n], a [R, m], b [R, n]. An expert without rows adds
  // nothing: with beta 0 its c is zero.
  virtual void grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, float beta) = 0;

  // --- norms. x, y [T, d]; weight, bias f32 [d] (bias undefined: none); stats f32 [T, 2] (mean, 1 / deviation).
  virtual void norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    NormKind kind, float eps) = 0;
  // dx += ; dweight, dbias f32 +=.
  virtual void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                             const Tensor& x, const Tensor& stats, const Tensor& weight, NormKind kind) = 0;

  // --- attention
  // qkv [T, (h + 2 kv) c] -> q [T, h c], k, v [T, kv c]; the r = c - plain last channels of each head of q and k (with
  // plain_last the first) are rotated by position i32[T], pair i by the angle position * f, f = theta^(-2 i / r) where
  // nothing scales it. h or kv may be 0, its tensors then undefined. Source: Su et al., "RoFormer".
  virtual void split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                            const Tensor& position, const RotaryShape& shape) = 0;
  virtual void merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                     const Tensor& position, const RotaryShape& shape) = 0;
  // softmax(q k' / sqrt(c)) v over the keys that a token sees, blockwise. o has the shape of q; lse f32 [batch, h,
  // positions]. A token sees itself and what lies before it in its sequence, from first i32 [T] on where that is
  // defined (packed documents). first i32 [2, T] gives the last position too, in place of the token's own: for
  // encoders.
  virtual void attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                         const Tensor& first, const AttentionShape& shape);
  virtual void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                  const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                                  const Tensor& first, const AttentionShape& shape);
  // Attention of some queries to some keys of their sequences, for parts of a sequence that meet one after another.
  // Source: Liu et al., "Ring Attention with Blockwise Transformers". T_q = batch * positions, T_k = batch *
  // kv_positions. A query t sees the keys with first[t] <= k_position <= q_position, or last[t] in place of that. One
  // that sees nothing gets o = 0 and lse = -infinity.
  //   o           f32 [T_q, h c], whatever q's dtype: parts are merged in fp32
  //   lse         f32 [batch, h, positions]
  //   q           f [T_q, h c]
  //   k, v        f [T_k, kv c]
  //   q_position  i32 [positions]: the place of each row in its sequence, the same for every sequence, in any order
  //   k_position  i32 [kv_positions]: likewise
  //   first       i32 [T_q], or undefined: 0; or i32 [2, T_q], first and last
  virtual void attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                               const AttentionShape& shape) = 0;
  // Merges a partial result over other keys into (o, lse), in place: o and o_block f32 [T_q, h c], lse and lse_block
  // f32 [batch, h, positions]. Begin with the first block's result, or with o = 0 and lse = -infinity.
  virtual void attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                               const AttentionShape& shape) = 0;
  // Attention sinks: a learned score s of each query head joins the denominator of its softmax, and no value goes with
  // it. Applied to the result of the attention above, whole or merged, in place: lse becomes log(exp(lse) + exp(s)),
  // and o is multiplied by exp(lse before - lse after). attention_backward and attention_block_backward are exact when
  // they are given this o and lse. Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks"
  // (2023), in the form of OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025).
  //   o      f [T_q, h c], in place
  //   lse    f32 [batch, h, positions], in place
  //   sinks  f32 [h]
  virtual void attention_sinks(const Tensor& o, const Tensor& lse, const Tensor& sinks, const AttentionShape& shape);
  // dsinks f32 [h] -= the sum over a head's rows of exp(s - lse) * <d_o, o>; o f [T_q, h c] and lse with the sinks, d_o
  // f [T_q, h c].
  virtual void attention_sinks_backward(const Tensor& dsinks, const Tensor& d_o, const Tensor& o, const Tensor& lse,
                                        const Tensor& sinks, const AttentionShape& shape) = 0;
  // Adds what one block of keys contributes to the gradients.
  //   dq          f32 [T_q, h c], +=
  //   dk, dv      f32 [T_k, kv c], +=
  //   d_o         f [T_q, h c]
  //   q, k, v     as in attention_block
  //   o, lse      the final ones, merged over all blocks; o has q's dtype
  //   q_position, k_position, first: as in attention_block
  virtual void attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                        const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                        const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                        const Tensor& first, const AttentionShape& shape) = 0;

  // --- FFN activation. h [T, n]; a [T, f]: relu, gelu (tanh form): n = f; swiglu: n = 2f, h = (gate | up) in columns,
  // a = silu(gate) * up; clamped_swiglu: n = 2f, a = (u + 1) * g * sigmoid(1.702 g) with g = min(gate, 7) and u = up
  // cut off at -7 and 7 (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025); where one is cut off its slope is 0;
  // geglu: n = 2f, a = gelu(gate) * up (Shazeer, "GLU variants improve Transformer", 2020); tanh: n = f.
  virtual void activation(const Tensor& a, const Tensor& h, Activation kind) = 0;
  virtual void activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind);
  // The backward pass of an activation whose packed rows are later summed with weights. Row r has weight s =
  // weight[source[r]]. With it neither the experts' outputs nor their activations need to be kept. Source: Guo et al.,
  // "SonicMoE" (2025).
  //   dh       f [R, n] = s act'(h) da
  //   a        f [R, f] = s act(h)
  //   dweight  f32 [T, K]: <da[r], act(h[r])> at source[r], 0 for a choice without a row
  //   da       f [R, f]: the gradient as if s were 1
  //   h        f [R, n]
  //   weight   f32 [T, K]
  //   source   i32 [R, 1]; -1: the row's a and dh are 0. Undefined: weight and dweight are [R, 1], row r's at r
  virtual void weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight, const Tensor& da,
                                            const Tensor& h, const Tensor& weight, const Tensor& source,
                                            Activation kind) = 0;

  // --- embedding. y f [T, d]; table [V_r, d] holds rows first_row .. first_row + V_r of the vocabulary; id i32 [T] >=
  // 0. accumulate: y += instead of =. An id whose row is not here gives 0 and gets no gradient: the results of all
  // slices add up to the whole table's (Shoeybi et al., "Megatron-LM"). whole_table: the table is all there is, and an
  // id outside it is an error.
  static constexpr std::int64_t whole_table = -1;
  virtual void embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                         std::int64_t first_row = whole_table) = 0;
  virtual void embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id,
                                  std::int64_t first_row = whole_table) = 0;  // f32 dtable +=

  // --- loss. The gradient scale * (softmax - onehot) replaces logits f [T, V]. loss f32 [T] = -log p(label). A token
  // with label < 0 (i32 [T]) has loss 0 and gradient 0.
  virtual void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale);
  // The same for ranks that each hold some columns of the logits, f [T, V_r]: first_column .. first_column + V_r of the
  // vocabulary. They exchange three numbers for each token (Shoeybi et al., "Megatron-LM").
  // stats f32 [T, 3] = (max, sum of exp(l - max), logit of the label) of these columns. The last is -infinity if the
  // label's column is not here, or label < 0.
  virtual void cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                   std::int64_t first_column) = 0;
  // stats f32 [ranks, T, 3]: those of all slices, in an order that is the same on every rank. loss and gradient are
  // those of cross_entropy on whole rows. The loss is +infinity if no slice holds the label's column.
  virtual void cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                        const Tensor& stats, std::int64_t first_column, float scale) = 0;

  // --- router (router/). T tokens come in G whole groups of config.group_tokens. valid u8 [T]; 0: padding, which is
  // not routed. logits f32 [T, E], E = config.experts: those without weights of their own (config.zero_experts) come
  // last. Rows of padding are written in every output (expert -1, weight 0, lse 0, row -1, dlogits 0), whatever their
  // logits hold.
  //
  // gate chooses experts and weighs them.
  //   expert  i32 [T, K]: greatest logit first, ties to the lower index
  //   weight  f32 [T, K]: the score; with normalize_weights over the sum of the K scores (1 if K = 1)
  //   lse     f32 [T]: logsumexp of the logits
  //   chosen  i32 [G, E]: the tokens of each group that chose each expert, *before* capacity, by their first
  //           counted_choices. For the balance loss, as is the next one
  //   share   f64 [G, E]: the sum over a group's valid tokens of the expert's score over the sum of the E scores
  //   logits, valid: as above; token i64 [T] and key: for second_by_chance
  // Scores. softmax: the softmax of the logits. sigmoid: 1 / (1 + exp(-logit)), not with second_by_chance (DeepSeek-AI,
  // "DeepSeek-V3" (2024), equations 12 to 15 and 17 to 20).
  // second_by_chance: K = 2. The second expert is kept if uniform(key, token[t]) < 2 * weight; else it is -1 with
  // weight 0, and the first weight stays. experts_choose: the experts choose tokens (Zhou et al., "Mixture-of-Experts
  // with Expert Choice Routing"). K = E, and choice k is expert k or -1. Each expert takes the min(v, C) tokens of the
  // group of greatest log-probability (sigmoid: logit), ties to the lower token. C = max(1, ceil(factor * v / E)) for v
  // valid tokens; factor > 0. weight = score.
  virtual void gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                    const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                    const RandomKey& key, const GateConfig& config) = 0;
  // The two halves of gate, for gates that choose in another way.
  // choose_experts: expert i32 [T, K] = the K experts with the greatest score + bias[e], greatest first, ties to the
  // lower index; -1 for padding. bias f32 [E], or undefined: by logit, as gate. The experts stand in expert_groups runs
  // of equal length. A token chooses among the experts of its groups_per_token best groups; a group's worth is the sum
  // of its two greatest score + bias, or the greatest alone (group_score); ties to the lower group. Sources:
  // DeepSeek-AI, "DeepSeek-V3" (2024), equation 16 and section 2.1.2; "DeepSeek-V2" (2024), section 2.2.2. REQUIRES:
  // config.experts_choose and second_by_chance are false; expert_groups divides E and is at most 64; the chosen groups
  // have K experts.
  virtual void choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias, const Tensor& valid,
                              const GateConfig& config) = 0;
  // gate_choices: weight, lse, chosen and share are those of gate for the choices in expert i32 [T, K]: distinct
  // experts of a token, in any order, or -1. The sum of normalize_weights runs over the experts that are chosen.
  // Errors: an expert out of range, if the host can see it; other devices take it for -1, here and in gate_backward.
  virtual void gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                            const Tensor& expert, const Tensor& logits, const Tensor& valid,
                            const GateConfig& config) = 0;
  // bias f32 [E] += rate * sign(mean of load - load[e]); load is the sum of the rows of choices i64 [R, E]. Nothing
  // changes if *factor f32 [1] is NaN. Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for
  // Mixture-of-Experts" (2024), algorithm 1.
  virtual void balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor, float rate) = 0;
  // Choices of zero-computation experts get no seat and no row. Source: Jin et al., "MoE++" (2024), section 3.1.
  //   real   i32 [T, K]: expert; -1 for a choice of one of the last config.zero_experts experts
  //   other  f32 [T, K]: 1 for such a choice, else 0
  //   count  i32 [config.zero_experts]: the choices of each of them
  //   expert i32 [T, K], as gate writes it
  virtual void part_choices(const Tensor& real, const Tensor& other, const Tensor& count, const Tensor& expert,
                            const GateConfig& config) = 0;
  // Capacity, and the place of each choice among the packed rows, which are ordered by (expert, token, k). E here is
  // config.computing(); the even share that a capacity is counted from is that of all config.experts.
  //   row      i32 [T, K]: the packed row of a kept choice, else -1
  //   source   i32 [room, 1]: t * K + k of each packed row; -1 for a row that holds no choice
  //   count    i32 [E]: choices kept for each expert
  //   dropped  i32 [E]: choices refused for capacity
  //   offset   i32 [E + 1]: the rows of expert e are offset[e] .. offset[e + 1]
  //   expert, weight: as gate writes them; weights of kept choices are not renormalised after drops
  // Room: rows are packed without gaps, and room is T * K. With config.rows_per_expert = P > 0 the rows of expert e
  // begin at e * P, offset[e] = e * P, and room is E * P. REQUIRES: no expert keeps more than P choices. Errors: more,
  // if the host can see them; other devices give these choices no row. Seats: each expert has C in each group, C =
  // max(1, ceil(factor * K * v / config.experts)), v the group's valid tokens. C is exact, with factor rounded to
  // millionths (router/rules/capacity.h). Choices are seated in this order until the expert is full:
  //   position: all k = 0 choices of the group in token order, then all k = 1 choices, and so on.
  //   probability: greatest weight first (what is not above 0 last), ties to the lower token, then the lower k. With
  //   first_choices_first: all first choices in this order, then all others.
  // A choice that an expert has made has its seat: experts that choose drop nothing.
  virtual void dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count, const Tensor& dropped,
                             const Tensor& offset, const Tensor& expert, const Tensor& weight, const Tensor& valid,
                             const GateConfig& config) = 0;
  // expert i32 [T, K] becomes -1 where row i32 [T, K] < 0, in place: a choice that lost its seat counts as not made.
  // For ranks that decide capacity on whole groups and then take their own tokens of them.
  virtual void keep_seated(const Tensor& expert, const Tensor& row) = 0;
  // Permute. rows f [R, d] <- x f [T, d]: row r is token source[r] / K, or 0 where source is -1. R is the size of
  // `rows`. row [T, K] and source are those of one dispatch_plan; source has R elements or more. REQUIRES, here and in
  // the next three: all rows of choices are below R.
  virtual void pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) = 0;
  // dx [T, d] (accumulate: +=) sum over k, in order, of drows[row[t, k]].
  virtual void pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate);
  // Unpermute. y f [T, d] = (accumulate: +=) the sum over k, in order, of weight[t, k] * rows[row[t, k]]. A choice that
  // was not kept adds nothing.
  virtual void combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight,
                       bool accumulate) = 0;
  // drows[r] = weight[source[r]] * dy[token], 0 where source is -1. dweight f32 [T, K] = <dy[t], rows[row[t, k]]>, 0
  // where dropped. For layers of plugins: in the core's own layers weights travel with the rows
  // (weighted_activation_backward).
  virtual void combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy, const Tensor& rows,
                                const Tensor& row, const Tensor& source, const Tensor& weight) = 0;
  // The routed experts of tokens that stay on this rank, from pack to combine. experts/expert_ffn.cpp makes it of the
  // operations above; a device may fuse them. x, y f [T, d]; w_in f [E, n, d], w_out f [E, d, f]. h f [R, n] is written
  // for the backward pass, which needs nothing else but x.
  virtual void expert_ffn(const Tensor& y, const Tensor& h, const Tensor& x, const Tensor& w_in, const Tensor& w_out,
                          const Dispatch& dispatch, Activation kind);
  // Its backward pass.
  //   dx             f [T, d]
  //   dweight        f32 [T, K]
  //   dw_in, dw_out  f32: beta times what is there, plus the gradient
  //   dy             f [T, d]
  //   x, h, w_in, w_out, dispatch: of the forward pass
  virtual void expert_ffn_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dw_in, const Tensor& dw_out,
                                   const Tensor& dy, const Tensor& x, const Tensor& h, const Tensor& w_in,
                                   const Tensor& w_out, const Dispatch& dispatch, Activation kind, float beta);
  // Losses (router/rules/losses.h). For a group g with v_g valid tokens:
  //   L_g = E * sum_e f_e P_e, f_e = chosen[g, e] / sum of chosen[g], P_e = share[g, e] / v_g. L_g is 1 when balanced.
  //   f is a constant in the gradient. Experts that choose are balanced by construction: L_g = 1, gradient 0.
  // gate_losses: balance_loss f64[1] += sum over groups of v_g * L_g (a group of padding adds 0; the caller divides by
  // the global number of valid tokens); z_loss f64[1] += sum over tokens of lse^2.
  // gate_backward: dlogits f32 [T, E] = d(sum of dweight * weight) + aux_scale * d(sum_g v_g * L_g)
  //   + z_scale * d(sum_t logsumexp^2), each by logits.
  virtual void gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert, const Tensor& lse,
                             const Tensor& chosen, const Tensor& logits, const Tensor& valid, float aux_scale,
                             float z_scale, const GateConfig& config) = 0;
  virtual void gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen, const Tensor& share,
                           const Tensor& lse, const GateConfig& config) = 0;
  // What is told of a gate's decisions. sums f64 [3] += over the valid tokens of logits f32 [T, E]
  //   [0]  the entropy of the token's E scores over their sum, in nats
  //   [1]  of a token that has chosen some experts and not all: its least chosen logit - its greatest other one
  //   [2]  the number of such tokens
  // expert i32 [T, K], lse f32 [T]: as gate wrote them. second_by_chance: the experts of the two greatest logits are
  // those that were chosen, kept or not. experts_choose: no token has chosen, [1] and [2] stay.
  virtual void routing_sums(const Tensor& sums, const Tensor& expert, const Tensor& lse, const Tensor& logits,
                            const Tensor& valid, const GateConfig& config) = 0;

  // --- optimizer. All tensors are f32 [n]. grad is multiplied by *factor f32 [1] first. If factor is NaN, nothing
  // changes. weight (f32 or bf16, may be master itself) receives the updated master.
  virtual void adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v, const Tensor& grad,
                     const Tensor& factor, const AdamW& how) = 0;
  virtual void sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                   const Tensor& factor, const Sgd& how) = 0;
  // Several steps whose gradient is zero, in one pass: the bits of adamw, or sgd, with grad = +0 and factor = 1 for
  // each of `steps` in order. `steps` lies on the host and is read before the call returns. Without a step nothing is
  // written.
  virtual void adamw_replay(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                            std::span<const AdamW> steps);
  virtual void sgd_replay(const Tensor& master, const Tensor& weight, const Tensor& m, std::span<const Sgd> steps);
  // The last step of an optimizer whose update u f32 [n] is made of other operations: master -= lr * (u +
  // weight_decay * master). Nothing changes where finite f32[1] is NaN.
  virtual void descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                       float weight_decay);
  // x /= sqrt(sum_squares f64[1]) + eps, f32, in place.
  virtual void normalize(const Tensor& x, const Tensor& sum_squares, float eps) = 0;
  // factor f32 [1] = min(1, max_norm / sqrt(sum_squares)); with max_norm 0 it is 1. It is NaN if sum_squares f64 [1] or
  // loss f64 [1] is not finite.
  virtual void clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss, float max_norm) = 0;

  // --- an operation of a plugin's own (operation.h), in this stream's order.
  // Errors: Error naming it if a tensor is undefined or there are too many tensors; and what `host` or `native` throws.
  virtual void apply(const OwnOperation& operation);
};

}  // namespace orthant
