#include <algorithm>

#include "core/base/check.h"
#include "core/dry_run/meta_device.h"

namespace orthant {

void MetaStream::hold(std::initializer_list<Tensor> tensors) {
  if (late_ != nullptr && (!only_sums_ || late_->waits())) {
    late_->add(tensors);
  }
}

void MetaStream::sums(std::initializer_list<Tensor> tensors) {
  if (late_ != nullptr) {
    late_->add(tensors);
  }
}

std::shared_ptr<Event> MetaStream::record() {
  return std::make_shared<LateEvent>(late_ == nullptr ? WorkDone() : late_->all());
}

void MetaStream::wait(const std::shared_ptr<Event>& event) {
  const auto* late = dynamic_cast<const LateEvent*>(event.get());
  require(late != nullptr, "a stream of the meta device waits for an event of another device");
  if (late_ == nullptr) {
    LateWork::drop(late->behind());
  } else {
    late_->wait(late->behind());
  }
}

void MetaStream::synchronize() {
  if (late_ != nullptr) {
    LateWork::drop(late_->all());
  }
}

void MetaStream::forward(const char*, std::initializer_list<Tensor> tensors, Operation) {
  hold(tensors);
}

bool MetaStream::moves(std::initializer_list<Tensor> tensors) {
  hold(tensors);
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return !t.defined() || holds_data(t); });
}

void MetaStream::copy(const Tensor& to, const Tensor& from) {
  if (moves({to, from})) {
    small_.copy(to, from);
  }
}

void MetaStream::copy_rows(const Tensor& to, const Tensor& from, std::span<const RowRun> runs) {
  if (moves({to, from})) {
    small_.copy_rows(to, from, runs);
  }
}

void MetaStream::fill(const Tensor& t, double value) {
  if (moves({t})) {
    small_.fill(t, value);
  }
}

void MetaStream::upload(const Tensor& to, const Tensor& from_host) {
  if (moves({to, from_host})) {
    small_.upload(to, from_host);
  }
}

void MetaStream::download(const Tensor& to_host, const Tensor& from) {
  if (moves({to_host, from})) {
    small_.download(to_host, from);
  }
}

void MetaStream::upload(const Tensor& to, const void* host) {
  hold({to});
  if (holds_data(to)) {
    small_.upload(to, host);
  }
}

void MetaStream::download(void* host, const Tensor& from) {
  require_defined("download", "from", from);
  require(holds_data(from), "the meta device holds no data of a tensor of {} bytes that is to be read back",
          from.storage()->bytes());
  synchronize();
  small_.download(host, from);
}

void MetaStream::dispatch_plan(const Tensor&, const Tensor&, const Tensor& count, const Tensor& dropped,
                               const Tensor& offset, const Tensor& expert, const Tensor&, const Tensor&,
                               const GateConfig& config) {
  const std::int64_t experts = config.computing(), choices = expert.elements();
  require_tensor("dispatch_plan", "count", count, DType::i32, {experts});
  require_tensor("dispatch_plan", "dropped", dropped, DType::i32, {experts});
  require_tensor("dispatch_plan", "offset", offset, DType::i32, {experts + 1});
  require(holds_data(count) && holds_data(dropped) && holds_data(offset), "the meta device cannot plan for {} experts",
          experts);
  const bool part = expert.data() == seated_expert_;
  seated_expert_ = nullptr;  // its address may be another tensor's from here on
  const PlannedRouting& routing = device_.routing(experts);
  last_ = part ? planned_part(routing, config, choices, last_) : planned_load(routing, config, choices);
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  std::transform(last_.kept.begin(), last_.kept.end(), count.as<std::int32_t>(), number);
  std::transform(last_.dropped.begin(), last_.dropped.end(), dropped.as<std::int32_t>(), number);
  auto* first = offset.as<std::int32_t>();
  first[0] = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    first[e + 1] = first[e] + number(config.rows_per_expert > 0 ? config.rows_per_expert : last_.kept[e]);
  }
}

void MetaStream::keep_seated(const Tensor& expert, const Tensor&) {
  seated_expert_ = expert.data();
}

}  // namespace orthant
