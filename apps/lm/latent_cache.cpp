#include "apps/lm/latent_cache.h"

#include <algorithm>
#include <utility>

#include <orthant/device.h>
#include <orthant/error.h>

#include "apps/lm/row_count.h"
#include "core/device/cpu/parallel.h"

namespace orthant {
namespace {

constexpr std::int64_t fewest_rows = 64;

Tensor in_f32(const Tensor& t, Stream& s) {
  if (t.dtype() == DType::f32) {
    return t;
  }
  const Tensor to = s.device().empty(DType::f32, t.shape());
  s.cast(to, t);
  return to;
}

LatentCore::Keys in_f32(const LatentCore::Keys& keys, Stream& s) {
  return {in_f32(keys.k, s), in_f32(keys.v, s)};
}

}  // namespace

void LatentCache::hold(std::vector<std::int64_t> windows) {
  windows_ = std::move(windows);
  layers_.resize(windows_.size());
}

void LatentCache::begin(std::vector<SequenceRows> rows) {
  rows_ = std::move(rows);
  layer_ = 0;
}

void LatentCache::forget(int sequence) {
  for (auto& layer : layers_) {
    const auto found = layer.find(sequence);
    if (found != layer.end()) {
      taken_ -= found->second.wide != nullptr ? found->second.wide->bytes() : 0;
      layer.erase(found);
    }
  }
}

void LatentCache::append(Sequence& sequence, const Tensor& narrow, Stream& s) const {
  const std::int64_t length = sequence.length + narrow.dim(0);
  if (!sequence.rows.defined() || sequence.rows.dim(0) < length) {
    const std::int64_t capacity = rounded_rows(std::max(fewest_rows, length + length / 4));
    const Tensor more = s.device().empty(narrow.dtype(), {capacity, narrow.dim(1)});
    s.fill(more, 0);
    if (sequence.length > 0) {
      s.copy(more.rows(0, sequence.length), sequence.rows.rows(0, sequence.length));
    }
    sequence.rows = more;
  }
  s.copy(sequence.rows.rows(sequence.length, narrow.dim(0)), narrow);
  sequence.length = length;
}

std::vector<Tensor> LatentCache::page(int sequence, std::int64_t index, Stream& s) const {
  std::vector<Tensor> made;
  for (const auto& layer : layers_) {
    if (const auto found = layer.find(sequence); found != layer.end()) {
      const Tensor& all = found->second.rows;
      made.push_back(s.device().empty(all.dtype(), {KeyValueCache::page_tokens, all.dim(1)}));
      s.copy(made.back(), all.rows(index * KeyValueCache::page_tokens, KeyValueCache::page_tokens));
    }
  }
  return made;
}

void LatentCache::append(int sequence, const std::vector<Tensor>& page, Stream& s) {
  for (std::size_t i = 0; i < page.size(); ++i) {
    append(layers_.at(i)[sequence], page[i], s);
  }
}

// Whether keys and values of the sequence stay; then there is room for those of the pass.
bool LatentCache::keep(Sequence& sequence, const SequenceRows& rows, const AttentionShape& shape, DType dtype) {
  if (rows.position == 0) {
    sequence.wide = std::make_shared<KeyValueCache>(shape.kv_heads, shape.head_dim, dtype);
  }
  if (sequence.wide == nullptr) {
    return false;
  }
  const std::int64_t has = sequence.wide->bytes(), wants = sequence.wide->bytes_of(rows.position + rows.rows);
  if (taken_ + wants - has > room_) {
    taken_ -= has;
    sequence.wide = nullptr;
    return false;
  }
  sequence.wide->grow(rows.rows);
  taken_ += wants - has;
  return true;
}

Tensor LatentCache::attend(const Tensor& q, const Tensor& narrow, const Widen& widen, const AttentionShape& shape,
                           Stream& s) {
  require(layer_ < layers_.size(), "a forward pass meets more than {} layers with attention", layers_.size());
  std::map<int, Sequence>& sequences = layers_[layer_];
  const std::int64_t window = windows_[layer_++];
  const Tensor queries = in_f32(q, s);
  const DType dtype = q.dtype();  // of keys and values too
  const Keys now = in_f32(widen(narrow), s);
  const Tensor o = s.device().empty(DType::f32, q.shape());
  std::vector<CachedRows> kept;
  std::vector<std::pair<Sequence*, SequenceRows>> others;
  for (const SequenceRows& rows : rows_) {
    Sequence& sequence = sequences[rows.sequence];
    require(sequence.length == rows.position, "sequence {} has {} tokens in the cache, and goes on at {}",
            rows.sequence, sequence.length, rows.position);
    append(sequence, narrow.rows(rows.row, rows.rows), s);
    if (keep(sequence, rows, shape, dtype)) {
      kept.push_back({sequence.wide.get(), rows.row, rows.rows, rows.position});
    } else {
      others.emplace_back(&sequence, rows);
    }
  }
  const Tensor lse = s.device().empty(DType::f32, {1, shape.heads, q.dim(0)});
  s.apply({.name = "generate/attention",
           .inputs = {queries, now.k, now.v},
           .outputs = {o, lse},
           .host = [kept, shape, window, threads = threads_](const HostArguments& a) {
             cached_attention(threads, a.output<float>(0), a.output<float>(1), a.input<float>(0), a.input<float>(1),
                              a.input<float>(2), kept, shape.heads, shape.kv_heads, shape.head_dim, window);
           }});
  for (const auto& [sequence, rows] : others) {
    auto wide = std::make_shared<KeyValueCache>(shape.kv_heads, shape.head_dim, dtype);
    wide->grow(sequence->length);
    std::vector<Tensor> inputs = {queries.rows(rows.row, rows.rows), now.k.rows(rows.row, rows.rows),
                                  now.v.rows(rows.row, rows.rows)};
    if (rows.position > 0) {
      const Keys earlier = in_f32(widen(sequence->rows.rows(0, rounded_rows(rows.position))), s);
      inputs.insert(inputs.end(), {earlier.k, earlier.v});
    }
    s.apply({.name = "generate/latent_attention",
             .inputs = inputs,
             .outputs = {o.rows(rows.row, rows.rows), s.device().empty(DType::f32, {1, shape.heads, rows.rows})},
             .host = [wide, shape, window, position = rows.position, count = rows.rows,
                      threads = threads_](const HostArguments& a) {
               const std::int64_t width = shape.kv_heads * shape.head_dim;
               if (position > 0) {
                 const float *k = a.input<float>(3).data(), *v = a.input<float>(4).data();
                 parallel_for(threads, shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t head = begin; head < end; ++head) {
                     wide->put(head, 0, position, k + head * shape.head_dim, v + head * shape.head_dim, width);
                   }
                 });
               }
               const CachedRows run{wide.get(), 0, count, position};
               cached_attention(threads, a.output<float>(0), a.output<float>(1), a.input<float>(0), a.input<float>(1),
                                a.input<float>(2), {&run, 1}, shape.heads, shape.kv_heads, shape.head_dim, window);
             }});
    if (taken_ + wide->bytes() <= room_) {
      taken_ += wide->bytes();
      sequence->wide = std::move(wide);
    }
  }
  if (q.dtype() == DType::f32) {
    return o;
  }
  const Tensor out = s.device().empty(q.dtype(), q.shape());
  s.cast(out, o);
  return out;
}

}  // namespace orthant
