// Default bodies of a Stream's operations: those that are made of others. A device overrides them where it has
// something faster. The experts' are in experts/expert_ffn.cpp.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/device/attention_check.h"
#include "core/device/operation_checks.h"
#include "core/device/own_operation.h"
#include "core/device/router_checks.h"

namespace orthant {
namespace {

Tensor filled(Stream& s, DType dtype, const Shape& shape, double value) {
  const Tensor t = s.device().empty(dtype, shape);
  s.fill(t, value);
  return t;
}

Tensor uploaded(Stream& s, const std::vector<std::int32_t>& values) {
  const Tensor t = s.device().empty(DType::i32, {static_cast<std::int64_t>(values.size())});
  s.upload(t, values.data());
  return t;
}

// 0, 1, 2, ...
Tensor numbers(Stream& s, std::int64_t n) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return uploaded(s, all);
}

void copy_bytes(Stream& s, const Tensor& to, const Tensor& from) {
  s.host([&device = s.device(), to, from] {
    const auto source = device.host_view(from, Access::read), target = device.host_view(to, Access::write);
    std::copy_n(source->data(), source->bytes(), target->data());
  });
}

}  // namespace

void Stream::wait(const std::shared_ptr<Event>& event) {
  require(event != nullptr, "wait: the event is null");
  host([event] { event->wait(); });
}

void Stream::synchronize() {
  record()->wait();
}

void Stream::upload(const Tensor& to, const void* from) {
  require_defined("upload", "to", to);
  const auto* bytes = static_cast<const std::byte*>(from);
  host([this, to, taken = std::vector<std::byte>(bytes, bytes + to.bytes())] {
    std::copy(taken.begin(), taken.end(), device().host_view(to, Access::write)->data());
  });
}

void Stream::download(void* to, const Tensor& from) {
  require_defined("download", "from", from);
  host([this, to, from] {
    const auto view = device().host_view(from, Access::read);
    std::copy_n(view->data(), view->bytes(), static_cast<std::byte*>(to));
  });
  synchronize();
}

void Stream::upload(const Tensor& to, const Tensor& from_host) {
  check_transfer("upload", from_host, to);
  copy_bytes(*this, to, from_host);
}

void Stream::download(const Tensor& to_host, const Tensor& from) {
  check_transfer("download", to_host, from);
  copy_bytes(*this, to_host, from);
}

void Stream::copy(const Tensor& to, const Tensor& from) {
  check_copy(to, from);
  const RowRun all[] = {{0, 0, to.elements()}};
  copy_rows(to.view({to.elements()}), from.view({from.elements()}), all);
}

void Stream::swap_outer(const Tensor& to, const Tensor& from) {
  check_swap_outer(to, from);
  const std::int64_t outer = from.dim(0), inner = from.dim(1);
  std::vector<RowRun> runs;
  for (std::int64_t r = 0; r < outer * inner; ++r) {
    runs.push_back({r, r % inner * outer + r / inner, 1});
  }
  copy_rows(to.view({outer * inner, to.dim(2)}), from.view({outer * inner, from.dim(2)}), runs);
}

void Stream::scale(const Tensor& y, float a) {
  require_float("scale", "y", y);
  multiply(y, filled(*this, DType::f32, y.shape(), static_cast<double>(a)));
}

void Stream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& first, const AttentionShape& shape) {
  check_attention("attention", o, lse, q, k, v, first, shape);
  const Tensor place = numbers(*this, shape.positions);
  const Tensor wide = o.dtype() == DType::f32 ? o : device().empty(DType::f32, o.shape());
  attention_block(wide, lse, q, k, v, place, place, first, shape);
  if (o.dtype() != DType::f32) {
    cast(o, wide);
  }
}

void Stream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                                const Tensor& first, const AttentionShape& shape) {
  check_attention_backward(dq, dk, dv, d_o, q, k, v, o, lse, first, shape);
  const Tensor place = numbers(*this, shape.positions);
  const Tensor sum_q = filled(*this, DType::f32, q.shape(), 0), sum_k = filled(*this, DType::f32, k.shape(), 0),
               sum_v = filled(*this, DType::f32, v.shape(), 0);
  attention_block_backward(sum_q, sum_k, sum_v, d_o, q, k, v, o, lse, place, place, first, shape);
  cast(dq, sum_q);
  cast(dk, sum_k);
  cast(dv, sum_v);
}

// A head's sink is one more block of keys, whose values are 0 and whose sum is exp(s) for every query.
void Stream::attention_sinks(const Tensor& o, const Tensor& lse, const Tensor& sinks, const AttentionShape& shape) {
  check_attention_sinks("attention_sinks", o, lse, sinks, shape);
  std::vector<std::int32_t> head(static_cast<std::size_t>(lse.elements()));
  for (std::size_t i = 0; i < head.size(); ++i) {
    head[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / shape.positions % shape.heads);
  }
  const Tensor of_block = device().empty(DType::f32, lse.shape()), wide = device().empty(DType::f32, o.shape());
  embedding(of_block.view({lse.elements(), 1}), sinks.view({shape.heads, 1}), uploaded(*this, head), false);
  cast(wide, o);
  attention_merge(wide, lse, filled(*this, DType::f32, o.shape(), 0), of_block, shape);
  cast(o, wide);
}

void Stream::activation_backward(const Tensor& dh, const Tensor& da, const Tensor& h, Activation kind) {
  check_activation_backward(dh, da, h, kind);
  const Shape weights{da.dim(0), 1};
  weighted_activation_backward(dh, device().empty(da.dtype(), da.shape()), device().empty(DType::f32, weights), da, h,
                               filled(*this, DType::f32, weights, 1), {}, kind);
}

void Stream::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale_by) {
  check_cross_entropy(loss, logits, label);
  const Tensor stats = device().empty(DType::f32, {1, logits.dim(0), 3});
  cross_entropy_stats(stats.view({logits.dim(0), 3}), logits, label, 0);
  cross_entropy_from_stats(loss, logits, label, stats, 0, scale_by);
}

void Stream::pack_backward(const Tensor& dx, const Tensor& drows, const Tensor& row, bool accumulate) {
  check_pack_backward(dx, drows, row);
  combine(dx, drows, row, filled(*this, DType::f32, row.shape(), 1), accumulate);
}

void Stream::adamw_replay(const Tensor& master, const Tensor& weight, const Tensor& m, const Tensor& v,
                          std::span<const AdamW> steps) {
  check_replay("adamw_replay", master, weight);
  const Tensor grad = filled(*this, DType::f32, master.shape(), 0), factor = filled(*this, DType::f32, {1}, 1);
  for (const AdamW& how : steps) {
    adamw(master, weight, m, v, grad, factor, how);
  }
}

void Stream::sgd_replay(const Tensor& master, const Tensor& weight, const Tensor& m, std::span<const Sgd> steps) {
  check_replay("sgd_replay", master, weight);
  const Tensor grad = filled(*this, DType::f32, master.shape(), 0), factor = filled(*this, DType::f32, {1}, 1);
  for (const Sgd& how : steps) {
    sgd(master, weight, m, grad, factor, how);
  }
}

// A step of SGD without momentum, whose factor is 1, or NaN where `finite` is.
void Stream::descend(const Tensor& master, const Tensor& weight, const Tensor& u, const Tensor& finite, float lr,
                     float weight_decay) {
  check_optimizer("descend", master, weight, u, finite);
  const Tensor factor = filled(*this, DType::f32, {1}, 0);
  multiply(factor, finite);
  add(factor, filled(*this, DType::f32, {1}, 1));
  sgd(master, weight, filled(*this, DType::f32, master.shape(), 0), u, factor,
      {.lr = lr, .momentum = 0, .weight_decay = weight_decay});
}

void Stream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  if (operation.native != nullptr && operation.native_device == device().name()) {
    operation.native(*this);
    return;
  }
  run_in_order(*this, [&] {
    std::vector<GivenTensor> tensors;
    for (const Tensor& t : operation.inputs) {
      tensors.push_back({t, false});
    }
    for (const Tensor& t : operation.outputs) {
      tensors.push_back({t, true});
    }
    const HostViews views(device(), tensors);
    run_on_host(operation, [&](const Tensor& t) { return views.data(t); });
  });
}

}  // namespace orthant
