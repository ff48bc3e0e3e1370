#include "core/train/micro_batches.h"

#include <orthant/gate.h>

#include <algorithm>

#include "core/objectives/kinds.h"
#include "core/plan/batch_share.h"

namespace orthant {
namespace {

// Where the model has a window, no token sees further back than it.
HostBatch with_window(HostBatch whole, std::int64_t window) {
  for (std::size_t i = 0; window > 0 && i < whole.first.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) % whole.positions;
    whole.first[i] = std::max(whole.first[i], static_cast<std::int32_t>(place - window + 1));
  }
  return whole;
}

std::int64_t valid_of(const HostBatch& host) {
  return std::count_if(host.valid.begin(), host.valid.end(), [](std::uint8_t v) { return v != 0; });
}

// Uploads values as tensors of the plan's device.
class Upload {
 public:
  Upload(const Plan& plan, Stream& stream) : device_(plan.device()), stream_(stream) {}
  template <class T>
  Tensor operator()(DType dtype, const std::vector<T>& values) const {
    return put(dtype, {static_cast<std::int64_t>(values.size())}, values);
  }
  template <class T>
  Tensor put(DType dtype, const Shape& shape, const std::vector<T>& values) const {
    Tensor t = device_.empty(dtype, shape);
    stream_.upload(t, values.data());
    return t;
  }

 private:
  Device& device_;
  Stream& stream_;
};

// The last position of each token's document, for whom the window does not end before.
std::vector<std::int32_t> last_of(const HostBatch& batch, std::int64_t window) {
  std::vector<std::int32_t> last(batch.first.size());
  for (std::size_t i = last.size(); i-- > 0;) {
    const auto place = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % batch.positions);
    const bool ends = place + 1 == batch.positions || batch.first[i + 1] != batch.first[i];
    last[i] = ends ? place : last[i + 1];
  }
  for (std::size_t i = 0; window > 0 && i < last.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) % batch.positions;
    last[i] = static_cast<std::int32_t>(std::min<std::int64_t>(last[i], place + window - 1));
  }
  return last;
}

// Of each position of `at` the first and last of the document in `in` that has the same number in its sequence.
void join_documents(const HostBatch& at, const HostBatch& in, std::vector<std::int32_t>& first,
                    std::vector<std::int32_t>& last) {
  first.assign(at.first.size(), 0);
  last.assign(at.first.size(), -1);
  const std::vector<std::int32_t> ends = last_of(in, 0);
  for (std::int64_t s = 0; s < at.sequences; ++s) {
    std::int64_t there = 0;
    for (std::int64_t i = 0; i < at.positions; ++i) {
      const std::size_t here = static_cast<std::size_t>(s * at.positions + i);
      if (at.valid[here] == 0) {
        continue;
      }
      if (i > 0 && at.first[here] != at.first[here - 1]) {
        there = there < in.positions ? ends[static_cast<std::size_t>(s * in.positions + there)] + 1 : there;
      }
      const std::size_t other = static_cast<std::size_t>(s * in.positions + there);
      if (there < in.positions && in.valid[other] != 0) {
        first[here] = in.first[other];
        last[here] = ends[other];
      }
    }
  }
}

void pad_space(HostBatch& host, std::int64_t sequences, const Space& space) {
  const std::size_t tokens = static_cast<std::size_t>(sequences * space.positions);
  host.sequences = sequences;
  host.positions = space.positions;
  host.columns = space.columns;
  host.token.resize(tokens, 0);
  host.label.resize(tokens, -1);
  host.position.resize(tokens, 0);
  host.first.resize(tokens, 0);
  host.valid.resize(tokens, 0);
  host.index.resize(tokens, 0);
  host.value.resize(tokens * static_cast<std::size_t>(host.columns), 0);
}

// What layers of every space need. given: without the window.
DeviceBatch upload_space(const HostBatch& given, const Plan& plan, Stream& stream, int space) {
  const Settings& settings = plan.settings();
  const std::int64_t window = settings.model.sliding_window;
  const bool both_ways = plan.spaces()[static_cast<std::size_t>(space)].both_ways;
  const HostBatch whole = with_window(given, window);
  const HostBatch host = held_rows(whole, plan, Region::embedding, space),
                  core = held_rows(whole, plan, Region::attention_core, space);
  const Upload put(plan, stream);
  DeviceBatch batch;
  batch.sequences = host.sequences;
  batch.positions = host.positions;
  batch.token = put(DType::i32, host.token);
  batch.label = put(DType::i32, host.label);
  batch.position = put(DType::i32, host.position);
  batch.valid = put(DType::u8, host.valid);
  batch.index = put(DType::i64, host.index);
  batch.valid_count = valid_of(host);
  batch.core_positions = core.positions;
  // Every rank decides by the whole sequences, so that all members of a group make the same calls.
  const auto put_first = [&](const HostBatch& of_all, HostBatch held, std::int64_t of_window) {
    if (both_ways) {
      HostBatch lasts = of_all;
      lasts.first = last_of(given, of_window);
      const std::vector<std::int32_t> last = held_rows(lasts, plan, Region::attention_core, space).first;
      held.first.insert(held.first.end(), last.begin(), last.end());
      return put.put(DType::i32, {2, static_cast<std::int64_t>(last.size())}, held.first);
    }
    const bool matters = std::any_of(of_all.first.begin(), of_all.first.end(), [](std::int32_t f) { return f != 0; });
    return matters ? put(DType::i32, held.first) : Tensor();
  };
  batch.core_first = put_first(whole, core, window);
  if (settings.model.full_attention_every > 0) {
    batch.core_first_full = put_first(given, held_rows(given, plan, Region::attention_core, space), 0);
  }
  batch.whole_valid = put(DType::u8, whole.valid);
  batch.whole_index = put(DType::i64, whole.index);
  if (settings.moe.experts > 0 && gate_of(settings).reads_tokens(settings.moe)) {
    batch.whole_token = put(DType::i32, whole.token);
  }
  if (host.columns > 0) {
    batch.value = put.put(DType::f32, {host.sequences * host.positions, host.columns}, host.value);
  }
  return batch;
}

}  // namespace

DeviceBatch upload(const HostBatch& given, const Plan& plan, Stream& stream) {
  const MemoryScope as(plan.device(), MemoryKind::other);
  require(given.spaces.size() + 1 == plan.spaces().size(), "a batch of {} token spaces for a model of {}",
          given.spaces.size() + 1, plan.spaces().size());
  DeviceBatch batch = upload_space(given, plan, stream, 0);
  for (const Objective* objective : objectives_of(plan.settings())) {
    batch.of_objectives.push_back(objective->upload(given, plan, stream));  // whose documents no window cuts
  }
  for (std::size_t i = 0; i < given.spaces.size(); ++i) {
    batch.spaces.push_back(upload_space(given.spaces[i], plan, stream, static_cast<int>(i) + 1));
    HostBatch seen = given;
    std::vector<std::int32_t> last;
    join_documents(given, given.spaces[i], seen.first, last);
    std::vector<std::int32_t> both = held_rows(seen, plan, Region::attention_core).first;
    seen.first = std::move(last);
    const std::vector<std::int32_t> lasts = held_rows(seen, plan, Region::attention_core).first;
    both.insert(both.end(), lasts.begin(), lasts.end());
    batch.spaces.back().seen_here =
        Upload(plan, stream).put(DType::i32, {2, static_cast<std::int64_t>(lasts.size())}, both);
  }
  return batch;
}

void pad_to(HostBatch& host, std::int64_t sequences, const std::vector<Space>& spaces) {
  host.spaces.resize(spaces.size() - 1);
  for (std::size_t i = 0; i < spaces.size(); ++i) {
    pad_space(i == 0 ? host : host.spaces[i - 1], sequences, spaces[i]);
  }
}

}  // namespace orthant
