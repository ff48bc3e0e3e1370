#include "core/device/forwarding_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/device/own_operation.h"

namespace orthant {
namespace {

const Tensor& tensor_of(const Tensor& t) {
  return t;
}
template <class T>
Tensor tensor_of(const T&) {
  return {};
}

}  // namespace

Tensor ForwardingStream::seen(const Tensor& t) const {
  return t;
}

// Of the arguments, the tensors are what the operation touches.
template <class MemberFunction, class... Arguments>
void ForwardingStream::run(const char* name, MemberFunction operation, const Arguments&... arguments) {
  forward(name, {tensor_of(arguments)...},
          [operation, ... taken = seen(arguments)](Stream& inner) { (inner.*operation)(taken...); });
}

// The host's bytes are taken now: a caller may change them as soon as upload has returned.
void ForwardingStream::upload(const Tensor& to, const void* host) {
  const auto* bytes = static_cast<const std::byte*>(host);
  std::vector<std::byte> taken(bytes, bytes + (to.defined() ? to.bytes() : 0));
  forward("upload", {to}, [to = seen(to), taken = std::move(taken)](Stream& inner) { inner.upload(to, taken.data()); });
}

void ForwardingStream::download(void* host, const Tensor& from) {
  forward("download", {from}, [host, from = seen(from)](Stream& inner) { inner.download(host, from); });
  synchronize();
}

void ForwardingStream::upload(const Tensor& to, const Tensor& from_host) {
  forward("upload", {to, from_host},
          [to = seen(to), from_host = seen(from_host)](Stream& inner) { inner.upload(to, from_host); });
}

void ForwardingStream::download(const Tensor& to_host, const Tensor& from) {
  forward("download", {to_host, from},
          [to_host = seen(to_host), from = seen(from)](Stream& inner) { inner.download(to_host, from); });
}

void ForwardingStream::quantise(const Tensor& q, const Tensor& scale, const Tensor& x, std::int64_t block) {
  run("quantise", &Stream::quantise, q, scale, x, block);
}

void ForwardingStream::dequantise(const Tensor& x, const Tensor& q, const Tensor& scale, std::int64_t block) {
  run("dequantise", &Stream::dequantise, x, q, scale, block);
}

void ForwardingStream::stochastic_cast(const Tensor& to, const Tensor& from, const RandomKey& key, const SliceMap& at) {
  run("stochastic_cast", &Stream::stochastic_cast, to, from, key, at);
}

void ForwardingStream::encode_state(const Tensor& code, const Tensor& exponent, const Tensor& x, StateCode how,
                                    const RandomKey& key, const SliceMap& at) {
  run("encode_state", &Stream::encode_state, code, exponent, x, how, key, at);
}

void ForwardingStream::decode_state(const Tensor& x, const Tensor& code, const Tensor& exponent, StateCode how) {
  run("decode_state", &Stream::decode_state, x, code, exponent, how);
}

void ForwardingStream::copy(const Tensor& to, const Tensor& from) {
  run("copy", &Stream::copy, to, from);
}

void ForwardingStream::cast(const Tensor& to, const Tensor& from) {
  run("cast", &Stream::cast, to, from);
}

void ForwardingStream::fill(const Tensor& t, double value) {
  run("fill", &Stream::fill, t, value);
}

void ForwardingStream::copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  run("copy_rows", &Stream::copy_rows, to, from, std::vector<RowRun>(runs.begin(), runs.end()));
}

void ForwardingStream::swap_outer(const Tensor& to, const Tensor& from) {
  run("swap_outer", &Stream::swap_outer, to, from);
}

void ForwardingStream::add(const Tensor& y, const Tensor& x) {
  run("add", &Stream::add, y, x);
}

void ForwardingStream::scale(const Tensor& y, float a) {
  run("scale", &Stream::scale, y, a);
}

void ForwardingStream::multiply(const Tensor& y, const Tensor& x) {
  run("multiply", &Stream::multiply, y, x);
}

void ForwardingStream::sum_squares(const Tensor& out, const Tensor& x) {
  run("sum_squares", &Stream::sum_squares, out, x);
}

void ForwardingStream::sum(const Tensor& out, const Tensor& x) {
  run("sum", &Stream::sum, out, x);
}

void ForwardingStream::reduce_matrix(const Tensor& rows, const Tensor& columns, const Tensor& all, const Tensor& x,
                                     ReduceOp how) {
  run("reduce_matrix", &Stream::reduce_matrix, rows, columns, all, x, how);
}

void ForwardingStream::init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) {
  run("init_normal", &Stream::init_normal, w, key, std, at);
}

void ForwardingStream::dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
                               const SliceMap& at) {
  run("dropout", &Stream::dropout, y, x, token, key, p, at);
}

void ForwardingStream::jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) {
  run("jitter", &Stream::jitter, y, x, token, key, e);
}

void ForwardingStream::gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) {
  run("gemm", &Stream::gemm, c, a, b, how);
}

void ForwardingStream::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  run("grouped_gemm", &Stream::grouped_gemm, c, a, b, offset, how);
}

void ForwardingStream::grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset,
                                       float beta) {
  run("grouped_gemm_tn", &Stream::grouped_gemm_tn, c, a, b, offset, beta);
}

void ForwardingStream::norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight,
                            const Tensor& bias, NormKind kind, float eps) {
  run("norm", &Stream::norm, y, stats, x, weight, bias, kind, eps);
}

void ForwardingStream::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                     const Tensor& x, const Tensor& stats, const Tensor& weight, NormKind kind) {
  run("norm_backward", &Stream::norm_backward, dx, dweight, dbias, dy, x, stats, weight, kind);
}

void ForwardingStream::split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                                    const Tensor& position, const RotaryShape& shape) {
  run("split_rotary", &Stream::split_rotary, q, k, v, qkv, position, shape);
}

void ForwardingStream::merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                             const Tensor& position, const RotaryShape& shape) {
  run("merge_rotary_backward", &Stream::merge_rotary_backward, dqkv, dq, dk, dv, position, shape);
}

void ForwardingStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& first, const AttentionShape& shape) {
  run("attention", &Stream::attention, o, lse, q, k, v, first, shape);
}

void ForwardingStream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                          const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                          const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  run("attention_backward", &Stream::attention_backward, dq, dk, dv, d_o, q, k, v, o, lse, first, shape);
}

void ForwardingStream::attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                                       const Tensor& v, const Tensor& q_position, const Tensor& k_position,
                                       const Tensor& first, const AttentionShape& shape) {
  run("attention_block", &Stream::attention_block, o, lse, q, k, v, q_position, k_position, first, shape);
}

void ForwardingStream::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block,
                                       const Tensor& lse_block, const AttentionShape& shape) {
  run("attention_merge", &Stream::attention_merge, o, lse, o_block, lse_block, shape);
}

void ForwardingStream::attention_sinks(const Tensor& o, const Tensor& lse, const Tensor& sinks,
                                       const AttentionShape& shape) {
  run("attention_sinks", &Stream::attention_sinks, o, lse, sinks, shape);
}

void ForwardingStream::attention_sinks_backward(const Tensor& dsinks, const Tensor& d_o, const Tensor& o,
                                                const Tensor& lse, const Tensor& sinks, const AttentionShape& shape) {
  run("attention_sinks_backward", &Stream::attention_sinks_backward, dsinks, d_o, o, lse, sinks, shape);
}

void ForwardingStream::attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                                const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                                const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                                const Tensor& first, const AttentionShape& shape) {
  run("attention_block_backward", &Stream::attention_block_backward, dq, dk, dv, d_o, q, k, v, o, lse, q_position,
      k_position, first, shape);
}

void ForwardingStream::activation(const Tensor& a, const Tensor& h, Activation kind) {
  run("activation", &Stream::activation, a, h, kind);
}

void ForwardingStream::activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  run("activation_backward", &Stream::activation_backward, dh, da, h, kind);
}

void ForwardingStream::weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight,
                                                    const Tensor& da, const Tensor& h, const Tensor& weight,
                                                    const Tensor& source, Activation kind) {
  run("weighted_activation_backward", &Stream::weighted_activation_backward, dh, a, dweight, da, h, weight, source,
      kind);
}

void ForwardingStream::embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                                 std::int64_t first_row) {
  run("embedding", &Stream::embedding, y, table, id, accumulate, first_row);
}

void ForwardingStream::embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id,
                                          std::int64_t first_row) {
  run("embedding_backward", &Stream::embedding_backward, dtable, dy, id, first_row);
}

void ForwardingStream::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) {
  run("cross_entropy", &Stream::cross_entropy, loss, logits, label, scale);
}

void ForwardingStream::cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                           std::int64_t first_column) {
  run("cross_entropy_stats", &Stream::cross_entropy_stats, stats, logits, label, first_column);
}

void ForwardingStream::cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                                const Tensor& stats, std::int64_t first_column, float scale) {
  run("cross_entropy_from_stats", &Stream::cross_entropy_from_stats, loss, logits, label, stats, first_column, scale);
}

void ForwardingStream::gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                            const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                            const RandomKey& key, const GateConfig& config) {
  run("gate", &Stream::gate, expert, weight, lse, chosen, share, logits, valid, token, key, config);
}

void ForwardingStream::dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count,
                                     const Tensor& dropped, const Tensor& offset, const Tensor& expert,
                                     const Tensor& weight, const Tensor& valid, const GateConfig& config) {
  run("dispatch_plan", &Stream::dispatch_plan, row, source, count, dropped, offset, expert, weight, valid, config);
}

void ForwardingStream::part_choices(const Tensor& real, const Tensor& other, const Tensor& count, const Tensor& expert,
                                    const GateConfig& config) {
  run("part_choices", &Stream::part_choices, real, other, count, expert, config);
}

void ForwardingStream::keep_seated(const Tensor& expert, const Tensor& row) {
  run("keep_seated", &Stream::keep_seated, expert, row);
}

void ForwardingStream::choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias,
                                      const Tensor& valid, const GateConfig& config) {
  run("choose_experts", &Stream::choose_experts, expert, logits, bias, valid, config);
}

void ForwardingStream::gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                                    const Tensor& expert, const Tensor& logits, const Tensor& valid,
                                    const GateConfig& config) {
  run("gate_choices", &Stream::gate_choices, weight, lse, chosen, share, expert, logits, valid, config);
}

void ForwardingStream::balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor, float rate) {
  run("balance_bias", &Stream::balance_bias, bias, choices, factor, rate);
}

void ForwardingStream::pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) {
  run("pack", &Stream::pack, rows, x, row, source);
}

void ForwardingStream::pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) {
  run("pack_backward", &Stream::pack_backward, dx, drows, row, accumulate);
}

void ForwardingStream::combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight,
                               bool accumulate) {
  run("combine", &Stream::combine, y, rows, row, weight, accumulate);
}

void ForwardingStream::combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy,
                                        const Tensor& rows, const Tensor& row, const Tensor& source,
                                        const Tensor& weight) {
  run("combine_backward", &Stream::combine_backward, drows, dweight, dy, rows, row, source, weight);
}

void ForwardingStream::gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert,
                                     const Tensor& lse, const Tensor& chosen, const Tensor& logits, const Tensor& valid,
                                     float aux_scale, float z_scale, const GateConfig& config) {
  run("gate_backward", &Stream::gate_backward, dlogits, dweight, expert, lse, chosen, logits, valid, aux_scale, z_scale,
      config);
}

void ForwardingStream::gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen,
                                   const Tensor& share, const Tensor& lse, const GateConfig& config) {
  run("gate_losses", &Stream::gate_losses, balance_loss, z_loss, chosen, share, lse, config);
}

void ForwardingStream::routing_sums(const Tensor& sums, const Tensor& expert, const Tensor& lse, const Tensor& logits,
                                    const Tensor& valid, const GateConfig& config) {
  run("routing_sums", &Stream::routing_sums, sums, expert, lse, logits, valid, config);
}

void ForwardingStream::adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                             const Tensor& grad, const Tensor& factor, const AdamW& how) {
  run("adamw", &Stream::adamw, master, weight, m, v, grad, factor, how);
}

void ForwardingStream::sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                           const Tensor& factor, const Sgd& how) {
  run("sgd", &Stream::sgd, master, weight, m, grad, factor, how);
}

void ForwardingStream::adamw_replay(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                                    std::span<const AdamW> steps) {
  run("adamw_replay", &Stream::adamw_replay, master, weight, m, v, std::vector<AdamW>(steps.begin(), steps.end()));
}

void ForwardingStream::sgd_replay(const Tensor& master, const Tensor& weight, const Tensor& m,
                                  std::span<const Sgd> steps) {
  run("sgd_replay", &Stream::sgd_replay, master, weight, m, std::vector<Sgd>(steps.begin(), steps.end()));
}

void ForwardingStream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite,
                               float lr, float weight_decay) {
  run("descend", &Stream::descend, master, weight, u, finite, lr, weight_decay);
}

void ForwardingStream::normalize(const Tensor& x, const Tensor& sum_squares, float eps) {
  run("normalize", &Stream::normalize, x, sum_squares, eps);
}

void ForwardingStream::clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss,
                                   float max_norm) {
  run("clip_factor", &Stream::clip_factor, factor, sum_squares, loss, max_norm);
}

void ForwardingStream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  std::array<Tensor, most_own_tensors> t;
  std::copy(operation.outputs.begin(), operation.outputs.end(),
            std::copy(operation.inputs.begin(), operation.inputs.end(), t.begin()));
  OwnOperation here = operation;
  for (std::vector<Tensor>* tensors : {&here.inputs, &here.outputs}) {
    for (Tensor& tensor : *tensors) {
      tensor = seen(tensor);
    }
  }
  forward(operation.name.c_str(), {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11]},
          [here = std::move(here)](Stream& inner) { inner.apply(here); });
}

}  // namespace orthant
