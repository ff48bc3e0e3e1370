// OffloadKeeper's weights: up a layer ahead or after the gate, dropped behind their layer.
#include <algorithm>
#include <utility>

#include "keeper.h"

namespace orthant::offload {

// Before the gate has chosen in a forward pass there is nothing to fetch; a backward pass reads whom the forward read.
void OffloadKeeper::fetch(Kept& of, const HookContext& at) {
  const ParamGroup& group = *of.group;
  if (of.window.has_value()) {
    if (!of.fetched.defined()) {
      of.fetched = empty(compute_dtype(), group.padded);
      of.window->emptied();
    }
    if (at.pass == Pass::none) {
      bring_experts(of, {});
    } else if (at.pass == Pass::backward && of.window->knows(at.micro_batch)) {
      bring_experts(of, of.window->rows_of(at.micro_batch));
    }
    return;
  }
  if (of.fetched.defined()) {
    return;
  }
  const Tensor& host = of.weight->open();
  of.fetched = empty(host.dtype(), group.whole_weight ? group.padded : group.owned_elements);
  up(of.fetched, host, of.weight->ready());
  of.arrived = lanes_->up->record();
  of.weight->close();
}

// rows: of each expert; none: all experts are wanted, whoever has rows.
void OffloadKeeper::bring_experts(Kept& of, std::span<const std::int64_t> rows) {
  std::vector<bool> wanted(of.window->experts(), rows.empty());
  for (std::size_t e = 0; e < rows.size(); ++e) {
    wanted[e] = rows[e] > 0 && !on_host(of, e, rows[e]);
  }
  of.window->bring(of.fetched, wanted, *of.weight, *lanes_);
  of.arrived = lanes_->up->record();
}

// Few rows cost less to move than the weights that they meet.
bool OffloadKeeper::on_host(const Kept& of, std::size_t expert, std::int64_t rows) const {
  return rows > 0 && rows <= places_.host_rows && !of.window->pinned(expert);
}

void OffloadKeeper::set_on_host(Kept& of, std::span<const std::int64_t> rows) {
  end_on_host(*of.group);
  std::vector<bool> experts;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    experts.push_back(on_host(of, e, rows[e]));
  }
  if (std::find(experts.begin(), experts.end(), true) == experts.end()) {
    return;
  }
  const Tensor& weight = of.weight->open();
  if (of.weight->ready() != nullptr) {
    lanes_->host->wait(of.weight->ready());
  }
  of.group->on_host = {.rows = {rows.begin(), rows.end()},
                       .experts = std::move(experts),
                       .weight = weight,
                       .stream = lanes_->host.get()};
  of.weight->close();
}

// A plan has no rows to count. Of an expert's rows two of four products may be in the host's memory at a time: d
// numbers in, n before the activation.
void OffloadKeeper::plan_on_host(Kept& of) {
  if (lanes_->device.holds_data() || places_.host_rows == 0) {
    return;
  }
  const ParamGroup& group = *of.group;
  const Param& first = group.params.front();  // [f, d]
  const std::int64_t experts = static_cast<std::int64_t>(of.window->experts());
  const std::int64_t d = first.size[1], n = group.elements / experts / d - first.size[0];
  of.planned_rows =
      lanes_->device.host_empty(compute_dtype(), {2 * (experts - places_.pinned) * places_.host_rows * (d + n)});
  const MemoryScope as(lanes_->device, MemoryKind::work);
  of.planned_offsets = {lanes_->device.empty(DType::i32, {4 * experts}),
                        lanes_->device.host_empty(DType::i32, {4 * experts})};
}

void OffloadKeeper::end_on_host(ParamGroup& group) {
  if (group.on_host.has_value()) {
    lanes_->traffic.to_host += group.on_host->to_host;
    lanes_->traffic.to_device += group.on_host->to_device;
    group.on_host.reset();
  }
}

void OffloadKeeper::refuse_after_gate(const ParamGroup& group) const {
  const auto refuse = [](const char* key, const std::string& why) {
    throw SettingError(fmt::format("plugins.offload.{}", key), why);
  };
  if (!group.whole_weight) {
    refuse("expert_weights",
           fmt::format("expert_weights = \"after_gate\": ranks share out the weights of '{}', and each needs the whole "
                       "of what the others' tokens chose\nwrite zero = 2 or less, an expert axis as large as the data "
                       "axis, or expert_weights = \"ahead\"",
                       group.name));
  }
  const std::size_t experts = runs_of_experts(group).size();
  if (places_.pinned > static_cast<std::int64_t>(experts)) {
    refuse("pinned_experts", fmt::format("pinned_experts = {}: a rank has {} experts of '{}'\nwrite at most {}",
                                         places_.pinned, experts, group.name, experts));
  }
}

// The groups that are acquired next, to the end of the next layer.
std::vector<int> OffloadKeeper::soon(const ParamGroup& now, bool training) const {
  std::vector<int> ids;
  int layer = now.layer, changes = 0;
  for (int id : (training ? order_ : validation_order_).ahead()) {
    const int next = kept_.at(id).group->layer;
    changes += next != layer ? 1 : 0;
    layer = next;
    if (changes > 1) {
      break;
    }
    ids.push_back(id);
  }
  return ids;
}

// A validation has an order of its own: one that led the other astray would hold more than a plan knows.
void OffloadKeeper::follow(const ParamGroup& group, const HookContext& at) {
  if (at.training && std::exchange(validating_, false)) {
    validation_order_.end_step();
  }
  validating_ = !at.training;
  (at.training ? order_ : validation_order_).acquired(group.id);
}

void OffloadKeeper::acquire_weight(Kept& of, const HookContext& at) {
  ParamGroup& group = *of.group;
  follow(group, at);
  fetch(of, at);
  for (int id : soon(group, at.training)) {
    Kept& next = kept_.at(id);
    if (!next.in_update && (!next.window.has_value() || at.pass == Pass::backward)) {
      fetch(next, at);
    }
  }
  if (of.arrived != nullptr) {
    at.stream.wait(of.arrived);
  }
  end_on_host(group);
  if (of.window.has_value() && at.pass == Pass::backward && of.window->knows(at.micro_batch)) {
    set_on_host(of, of.window->rows_of(at.micro_batch));
    plan_on_host(of);
  }
  group.owned_weight = of.fetched;
  if (group.whole_weight) {
    group.weight = of.fetched;
    group.owned_weight = of.fetched.slice(group.owned_begin, {group.owned_elements});
  }
}

void OffloadKeeper::drop_weight(Kept& of) {
  of.fetched = {};
  of.group->owned_weight = {};
  if (of.group->whole_weight) {
    of.group->weight = {};
  }
}

void OffloadKeeper::release_weight(Kept& of, const HookContext& at) {
  end_on_host(*of.group);
  of.planned_rows = {};
  of.planned_offsets = {};
  const std::vector<int> next = soon(*of.group, at.training);
  if (std::find(next.begin(), next.end(), of.group->id) == next.end()) {
    drop_weight(of);
  }
}

}  // namespace orthant::offload
