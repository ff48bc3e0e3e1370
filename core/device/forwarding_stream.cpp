#include "core/device/forwarding_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/device/own_operation.h"

namespace orthant {

// The host's bytes are taken now: a caller may change them as soon as upload has returned.
void ForwardingStream::upload(const Tensor& to, const void* host) {
  const auto* bytes = static_cast<const std::byte*>(host);
  std::vector<std::byte> taken(bytes, bytes + (to.defined() ? to.bytes() : 0));
  forward("upload", {to}, [=, taken = std::move(taken)](Stream& inner) { inner.upload(to, taken.data()); });
}

void ForwardingStream::download(void* host, const Tensor& from) {
  forward("download", {from}, [=](Stream& inner) { inner.download(host, from); });
  synchronize();
}

void ForwardingStream::upload(const Tensor& to, const Tensor& from_host) {
  forward("upload", {to, from_host}, [=](Stream& inner) { inner.upload(to, from_host); });
}

void ForwardingStream::download(const Tensor& to_host, const Tensor& from) {
  forward("download", {to_host, from}, [=](Stream& inner) { inner.download(to_host, from); });
}

void ForwardingStream::quantise(const Tensor& q, const Tensor& scale, const Tensor& x, std::int64_t block) {
  forward("quantise", {q, scale, x}, [=](Stream& inner) { inner.quantise(q, scale, x, block); });
}

void ForwardingStream::dequantise(const Tensor& x, const Tensor& q, const Tensor& scale, std::int64_t block) {
  forward("dequantise", {x, q, scale}, [=](Stream& inner) { inner.dequantise(x, q, scale, block); });
}

void ForwardingStream::copy(const Tensor& to, const Tensor& from) {
  forward("copy", {to, from}, [=](Stream& inner) { inner.copy(to, from); });
}

void ForwardingStream::cast(const Tensor& to, const Tensor& from) {
  forward("cast", {to, from}, [=](Stream& inner) { inner.cast(to, from); });
}

void ForwardingStream::fill(const Tensor& t, double value) {
  forward("fill", {t}, [=](Stream& inner) { inner.fill(t, value); });
}

void ForwardingStream::copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  forward("copy_rows", {to, from}, [=, runs = std::vector<RowRun>(runs.begin(), runs.end())](Stream& inner) {
    inner.copy_rows(to, from, runs);
  });
}

void ForwardingStream::swap_outer(const Tensor& to, const Tensor& from) {
  forward("swap_outer", {to, from}, [=](Stream& inner) { inner.swap_outer(to, from); });
}

void ForwardingStream::add(const Tensor& y, const Tensor& x) {
  forward("add", {y, x}, [=](Stream& inner) { inner.add(y, x); });
}

void ForwardingStream::scale(const Tensor& y, float a) {
  forward("scale", {y}, [=](Stream& inner) { inner.scale(y, a); });
}

void ForwardingStream::multiply(const Tensor& y, const Tensor& x) {
  forward("multiply", {y, x}, [=](Stream& inner) { inner.multiply(y, x); });
}

void ForwardingStream::sum_squares(const Tensor& out, const Tensor& x) {
  forward("sum_squares", {out, x}, [=](Stream& inner) { inner.sum_squares(out, x); });
}

void ForwardingStream::sum(const Tensor& out, const Tensor& x) {
  forward("sum", {out, x}, [=](Stream& inner) { inner.sum(out, x); });
}

void ForwardingStream::init_normal(const Tensor& w, const RandomKey& key, float std, const SliceMap& at) {
  forward("init_normal", {w}, [=](Stream& inner) { inner.init_normal(w, key, std, at); });
}

void ForwardingStream::dropout(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float p,
                               const SliceMap& at) {
  forward("dropout", {y, x, token}, [=](Stream& inner) { inner.dropout(y, x, token, key, p, at); });
}

void ForwardingStream::jitter(const Tensor& y, const Tensor& x, const Tensor& token, const RandomKey& key, float e) {
  forward("jitter", {y, x, token}, [=](Stream& inner) { inner.jitter(y, x, token, key, e); });
}

void ForwardingStream::gemm(const Tensor& c, const Tensor& a, const Tensor& b, Gemm how) {
  forward("gemm", {c, a, b}, [=](Stream& inner) { inner.gemm(c, a, b, how); });
}

void ForwardingStream::grouped_gemm(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset, Gemm how) {
  forward("grouped_gemm", {c, a, b, offset}, [=](Stream& inner) { inner.grouped_gemm(c, a, b, offset, how); });
}

void ForwardingStream::grouped_gemm_tn(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& offset,
                                       float beta) {
  forward("grouped_gemm_tn", {c, a, b, offset}, [=](Stream& inner) { inner.grouped_gemm_tn(c, a, b, offset, beta); });
}

void ForwardingStream::norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight,
                            const Tensor& bias, NormKind kind, float eps) {
  forward("norm", {y, stats, x, weight, bias},
          [=](Stream& inner) { inner.norm(y, stats, x, weight, bias, kind, eps); });
}

void ForwardingStream::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                     const Tensor& x, const Tensor& stats, const Tensor& weight, NormKind kind) {
  forward("norm_backward", {dx, dweight, dbias, dy, x, stats, weight},
          [=](Stream& inner) { inner.norm_backward(dx, dweight, dbias, dy, x, stats, weight, kind); });
}

void ForwardingStream::split_rotary(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& qkv,
                                    const Tensor& position, const RotaryShape& shape) {
  forward("split_rotary", {q, k, v, qkv, position},
          [=](Stream& inner) { inner.split_rotary(q, k, v, qkv, position, shape); });
}

void ForwardingStream::merge_rotary_backward(const Tensor& dqkv, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                             const Tensor& position, const RotaryShape& shape) {
  forward("merge_rotary_backward", {dqkv, dq, dk, dv, position},
          [=](Stream& inner) { inner.merge_rotary_backward(dqkv, dq, dk, dv, position, shape); });
}

void ForwardingStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& first, const AttentionShape& shape) {
  forward("attention", {o, lse, q, k, v, first},
          [=](Stream& inner) { inner.attention(o, lse, q, k, v, first, shape); });
}

void ForwardingStream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                          const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                          const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  forward("attention_backward", {dq, dk, dv, d_o, q, k, v, o, lse, first},
          [=](Stream& inner) { inner.attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, first, shape); });
}

void ForwardingStream::attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                                       const Tensor& v, const Tensor& q_position, const Tensor& k_position,
                                       const Tensor& first, const AttentionShape& shape) {
  forward("attention_block", {o, lse, q, k, v, q_position, k_position, first},
          [=](Stream& inner) { inner.attention_block(o, lse, q, k, v, q_position, k_position, first, shape); });
}

void ForwardingStream::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block,
                                       const Tensor& lse_block, const AttentionShape& shape) {
  forward("attention_merge", {o, lse, o_block, lse_block},
          [=](Stream& inner) { inner.attention_merge(o, lse, o_block, lse_block, shape); });
}

void ForwardingStream::attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                                const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                                const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                                const Tensor& first, const AttentionShape& shape) {
  forward("attention_block_backward", {dq, dk, dv, d_o, q, k, v, o, lse, q_position, k_position, first},
          [=](Stream& inner) {
            inner.attention_block_backward(dq, dk, dv, d_o, q, k, v, o, lse, q_position, k_position, first, shape);
          });
}

void ForwardingStream::activation(const Tensor& a, const Tensor& h, Activation kind) {
  forward("activation", {a, h}, [=](Stream& inner) { inner.activation(a, h, kind); });
}

void ForwardingStream::activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  forward("activation_backward", {dh, da, h}, [=](Stream& inner) { inner.activation_backward(dh, da, h, kind); });
}

void ForwardingStream::weighted_activation_backward(const Tensor& dh, const Tensor& a, const Tensor& dweight,
                                                    const Tensor& da, const Tensor& h, const Tensor& weight,
                                                    const Tensor& source, Activation kind) {
  forward("weighted_activation_backward", {dh, a, dweight, da, h, weight, source},
          [=](Stream& inner) { inner.weighted_activation_backward(dh, a, dweight, da, h, weight, source, kind); });
}

void ForwardingStream::embedding(const Tensor& y, const Tensor& table, const Tensor& id, bool accumulate,
                                 std::int64_t first_row) {
  forward("embedding", {y, table, id}, [=](Stream& inner) { inner.embedding(y, table, id, accumulate, first_row); });
}

void ForwardingStream::embedding_backward(const Tensor& dtable, const Tensor& dy, const Tensor& id,
                                          std::int64_t first_row) {
  forward("embedding_backward", {dtable, dy, id},
          [=](Stream& inner) { inner.embedding_backward(dtable, dy, id, first_row); });
}

void ForwardingStream::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) {
  forward("cross_entropy", {loss, logits, label},
          [=](Stream& inner) { inner.cross_entropy(loss, logits, label, scale); });
}

void ForwardingStream::cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                           std::int64_t first_column) {
  forward("cross_entropy_stats", {stats, logits, label},
          [=](Stream& inner) { inner.cross_entropy_stats(stats, logits, label, first_column); });
}

void ForwardingStream::cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                                const Tensor& stats, std::int64_t first_column, float scale) {
  forward("cross_entropy_from_stats", {loss, logits, label, stats},
          [=](Stream& inner) { inner.cross_entropy_from_stats(loss, logits, label, stats, first_column, scale); });
}

void ForwardingStream::gate(const Tensor& expert, const Tensor& weight, const Tensor& lse, const Tensor& chosen,
                            const Tensor& share, const Tensor& logits, const Tensor& valid, const Tensor& token,
                            const RandomKey& key, const GateConfig& config) {
  forward("gate", {expert, weight, lse, chosen, share, logits, valid, token},
          [=](Stream& inner) { inner.gate(expert, weight, lse, chosen, share, logits, valid, token, key, config); });
}

void ForwardingStream::dispatch_plan(const Tensor& row, const Tensor& source, const Tensor& count,
                                     const Tensor& dropped, const Tensor& offset, const Tensor& expert,
                                     const Tensor& weight, const Tensor& valid, const GateConfig& config) {
  forward("dispatch_plan", {row, source, count, dropped, offset, expert, weight, valid}, [=](Stream& inner) {
    inner.dispatch_plan(row, source, count, dropped, offset, expert, weight, valid, config);
  });
}

void ForwardingStream::keep_seated(const Tensor& expert, const Tensor& row) {
  forward("keep_seated", {expert, row}, [=](Stream& inner) { inner.keep_seated(expert, row); });
}

void ForwardingStream::choose_experts(const Tensor& expert, const Tensor& logits, const Tensor& bias,
                                      const Tensor& valid, const GateConfig& config) {
  forward("choose_experts", {expert, logits, bias, valid},
          [=](Stream& inner) { inner.choose_experts(expert, logits, bias, valid, config); });
}

void ForwardingStream::gate_choices(const Tensor& weight, const Tensor& lse, const Tensor& chosen, const Tensor& share,
                                    const Tensor& expert, const Tensor& logits, const Tensor& valid,
                                    const GateConfig& config) {
  forward("gate_choices", {weight, lse, chosen, share, expert, logits, valid},
          [=](Stream& inner) { inner.gate_choices(weight, lse, chosen, share, expert, logits, valid, config); });
}

void ForwardingStream::balance_bias(const Tensor& bias, const Tensor& choices, const Tensor& factor, float rate) {
  forward("balance_bias", {bias, choices, factor},
          [=](Stream& inner) { inner.balance_bias(bias, choices, factor, rate); });
}

void ForwardingStream::pack(const Tensor& rows, const Tensor& x, const Tensor& row, const Tensor& source) {
  forward("pack", {rows, x, row, source}, [=](Stream& inner) { inner.pack(rows, x, row, source); });
}

void ForwardingStream::pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) {
  forward("pack_backward", {dx, drows, row}, [=](Stream& inner) { inner.pack_backward(dx, drows, row, accumulate); });
}

void ForwardingStream::combine(const Tensor& y, const Tensor& rows, const Tensor& row, const Tensor& weight,
                               bool accumulate) {
  forward("combine", {y, rows, row, weight}, [=](Stream& inner) { inner.combine(y, rows, row, weight, accumulate); });
}

void ForwardingStream::combine_backward(const Tensor& drows, const Tensor& dweight, const Tensor& dy,
                                        const Tensor& rows, const Tensor& row, const Tensor& source,
                                        const Tensor& weight) {
  forward("combine_backward", {drows, dweight, dy, rows, row, source, weight},
          [=](Stream& inner) { inner.combine_backward(drows, dweight, dy, rows, row, source, weight); });
}

void ForwardingStream::gate_backward(const Tensor& dlogits, const Tensor& dweight, const Tensor& expert,
                                     const Tensor& lse, const Tensor& chosen, const Tensor& logits, const Tensor& valid,
                                     float aux_scale, float z_scale, const GateConfig& config) {
  forward("gate_backward", {dlogits, dweight, expert, lse, chosen, logits, valid}, [=](Stream& inner) {
    inner.gate_backward(dlogits, dweight, expert, lse, chosen, logits, valid, aux_scale, z_scale, config);
  });
}

void ForwardingStream::gate_losses(const Tensor& balance_loss, const Tensor& z_loss, const Tensor& chosen,
                                   const Tensor& share, const Tensor& lse, const GateConfig& config) {
  forward("gate_losses", {balance_loss, z_loss, chosen, share, lse},
          [=](Stream& inner) { inner.gate_losses(balance_loss, z_loss, chosen, share, lse, config); });
}

void ForwardingStream::adamw(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                             const Tensor& grad, const Tensor& factor, const AdamW& how) {
  forward("adamw", {master, weight, m, v, grad, factor},
          [=](Stream& inner) { inner.adamw(master, weight, m, v, grad, factor, how); });
}

void ForwardingStream::sgd(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& grad,
                           const Tensor& factor, const Sgd& how) {
  forward("sgd", {master, weight, m, grad, factor},
          [=](Stream& inner) { inner.sgd(master, weight, m, grad, factor, how); });
}

void ForwardingStream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite,
                               float lr, float weight_decay) {
  forward("descend", {master, weight, u, finite},
          [=](Stream& inner) { inner.descend(master, weight, u, finite, lr, weight_decay); });
}

void ForwardingStream::normalize(const Tensor& x, const Tensor& sum_squares, float eps) {
  forward("normalize", {x, sum_squares}, [=](Stream& inner) { inner.normalize(x, sum_squares, eps); });
}

void ForwardingStream::clip_factor(const Tensor& factor, const Tensor& sum_squares, const Tensor& loss,
                                   float max_norm) {
  forward("clip_factor", {factor, sum_squares, loss},
          [=](Stream& inner) { inner.clip_factor(factor, sum_squares, loss, max_norm); });
}

void ForwardingStream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  std::array<Tensor, most_own_tensors> t;
  std::copy(operation.outputs.begin(), operation.outputs.end(),
            std::copy(operation.inputs.begin(), operation.inputs.end(), t.begin()));
  forward(operation.name.c_str(), {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11]},
          [=](Stream& inner) { inner.apply(operation); });
}

}  // namespace orthant
