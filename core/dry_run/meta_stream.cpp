#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "core/dry_run/meta_device.h"
#include "router/rules/capacity.h"

namespace orthant {

void MetaStream::copy(const Tensor& to, const Tensor& from) {
  if (holds_data(to) && holds_data(from)) {
    small_.copy(to, from);
  }
}

void MetaStream::fill(const Tensor& t, double value) {
  if (holds_data(t)) {
    small_.fill(t, value);
  }
}

void MetaStream::copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  if (holds_data(to) && holds_data(from)) {
    small_.copy_rows(to, from, runs);
  }
}

void MetaStream::upload(const Tensor& to, const void* host) {
  if (holds_data(to)) {
    small_.upload(to, host);
  }
}

void MetaStream::download(void* host, const Tensor& from) {
  require_defined("download", "from", from);
  require(holds_data(from), "the meta device holds no data of a tensor of {} bytes that is to be read back",
          from.storage()->bytes());
  small_.download(host, from);
}

void MetaStream::upload(const Tensor& to, const Tensor& from_host) {
  if (holds_data(to) && holds_data(from_host)) {
    small_.upload(to, from_host);
  }
}

void MetaStream::download(const Tensor& to_host, const Tensor& from) {
  if (holds_data(to_host) && holds_data(from)) {
    small_.download(to_host, from);
  }
}

void MetaStream::dispatch_plan(const Tensor&, const Tensor&, const Tensor& count, const Tensor& dropped,
                               const Tensor& offset, const Tensor& expert, const Tensor&, const Tensor&,
                               const GateConfig& config) {
  const std::int64_t experts = config.experts;
  std::int64_t choices = expert.elements();
  if (expert.data() == seated_.expert) {
    choices = choices * seated_.kept / std::max<std::int64_t>(seated_.choices, 1);
  }
  seated_ = {};  // its address may be another tensor's from here on
  require_tensor("dispatch_plan", "count", count, DType::i32, {experts});
  require_tensor("dispatch_plan", "dropped", dropped, DType::i32, {experts});
  require_tensor("dispatch_plan", "offset", offset, DType::i32, {experts + 1});
  require(holds_data(count) && holds_data(dropped) && holds_data(offset), "the meta device cannot plan for {} experts",
          experts);
  auto *kept = count.as<std::int32_t>(), *refused = dropped.as<std::int32_t>();
  std::fill_n(kept, experts, 0);
  std::fill_n(refused, experts, 0);
  // Choice c goes to expert c mod E: groups go on where the one before stopped, so that the whole is even too.
  for (std::int64_t begin = 0; begin < choices; begin += config.group_tokens * config.top_k) {
    const std::int64_t group = std::min(config.group_tokens * config.top_k, choices - begin);
    const std::int64_t seats = capacity(config, group / config.top_k);
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t ahead = ((e - begin) % experts + experts) % experts;  // choices of the group before e's first
      const std::int64_t here = ahead < group ? (group - ahead - 1) / experts + 1 : 0;
      kept[e] += static_cast<std::int32_t>(std::min(here, seats));
      refused[e] += static_cast<std::int32_t>(config.experts_choose ? 0 : here - std::min(here, seats));
    }
  }
  auto* first = offset.as<std::int32_t>();
  first[0] = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    first[e + 1] =
        first[e] + (config.rows_per_expert > 0 ? static_cast<std::int32_t>(config.rows_per_expert) : kept[e]);
  }
  last_ = {expert.data(), std::accumulate(kept, kept + experts, std::int64_t{0}), choices};
}

void MetaStream::keep_seated(const Tensor& expert, const Tensor&) {
  seated_ = {expert.data(), last_.kept, last_.choices};
}

}  // namespace orthant
