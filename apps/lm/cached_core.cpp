#include "apps/lm/cached_core.h"

#include <utility>

#include <orthant/device.h>
#include <orthant/ops.h>

#include "core/plan/default_seams.h"

namespace orthant {
namespace {

Tensor as_type(const Tensor& t, DType dtype, Stream& s) {
  if (t.dtype() == dtype) {
    return t;
  }
  Tensor to = s.device().empty(dtype, t.shape());
  s.cast(to, t);
  return to;
}

}  // namespace

CachedCore::CachedCore(int threads) : whole_(make_local_attention()), threads_(threads) {}

void CachedCore::hold(std::vector<std::int64_t> windows) {
  windows_ = std::move(windows);
  layers_.resize(windows_.size());
}

void CachedCore::begin(std::vector<SequenceRows> rows) {
  rows_ = std::move(rows);
  layer_ = 0;
}

void CachedCore::forget(int sequence) {
  for (auto& layer : layers_) {
    layer.erase(sequence);
  }
}

// None where another cache has the model's tokens (LatentCache).
std::vector<KeyValueCache> CachedCore::page(int sequence, std::int64_t index) const {
  std::vector<KeyValueCache> made;
  for (const auto& layer : layers_) {
    if (const auto found = layer.find(sequence); found != layer.end()) {
      made.push_back(found->second.page(index));
    }
  }
  return made;
}

void CachedCore::append(int sequence, const std::vector<KeyValueCache>& page) {
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (const auto [found, is_new] = layers_.at(i).try_emplace(sequence, page[i]); !is_new) {
      found->second.append(page[i]);
    }
  }
}

Tensor CachedCore::forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first,
                           const HeadSinks& sinks, const AttentionShape& shape, Saved& saved, Stream& s) {
  if (rows_.empty()) {
    return whole_->forward(q, k, v, first, sinks, shape, saved, s);
  }
  require(layer_ < layers_.size(), "a forward pass meets more than {} layers with attention", layers_.size());
  std::map<int, KeyValueCache>& caches = layers_[layer_];
  const std::int64_t window = windows_[layer_++];
  std::vector<CachedRows> runs;
  for (const SequenceRows& rows : rows_) {
    KeyValueCache& cache = caches.try_emplace(rows.sequence, shape.kv_heads, shape.head_dim, k.dtype()).first->second;
    require(cache.length() == rows.position, "sequence {} has {} tokens in the cache, and goes on at {}", rows.sequence,
            cache.length(), rows.position);
    cache.grow(rows.rows);
    runs.push_back({&cache, rows.row, rows.rows, rows.position});
  }
  const Tensor o = s.device().empty(DType::f32, q.shape());
  const Tensor lse = s.device().empty(DType::f32, {1, shape.heads, q.dim(0)});
  s.apply({.name = "generate/attention",
           .inputs = {as_type(q, DType::f32, s), as_type(k, DType::f32, s), as_type(v, DType::f32, s)},
           .outputs = {o, lse},
           .host = [runs, shape, window, threads = threads_](const HostArguments& a) {
             cached_attention(threads, a.output<float>(0), a.output<float>(1), a.input<float>(0), a.input<float>(1),
                              a.input<float>(2), runs, shape.heads, shape.kv_heads, shape.head_dim, window,
                              shape.softcap);
           }});
  Tensor out = as_type(o, q.dtype(), s);
  if (sinks.weight.defined()) {
    s.attention_sinks(out, lse, sinks.weight, shape);
  }
  return out;
}

AttentionCore::Gradients CachedCore::backward(const Tensor&, const Tensor&, const HeadSinks&, const AttentionShape&,
                                              Saved&, Stream&) {
  fail("attention to a cache has no backward pass");
}

}  // namespace orthant
