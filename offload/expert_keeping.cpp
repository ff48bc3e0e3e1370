// OffloadKeeper's experts whose weights come up after the gate, or whose rows go to their weights.
#include <algorithm>

#include "keeper.h"

namespace orthant::offload {

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
  for (const Param& p : group.params) {
    if (p.spec.adapted) {
      refuse(
          "expert_weights",
          fmt::format("expert_weights = \"after_gate\": '{}' has an adapter, which is added to it before the gate has "
                      "chosen\nwrite expert_weights = \"ahead\", or lora.targets without experts",
                      p.spec.name));
    }
  }
  const std::size_t experts = runs_of_experts(group).size();
  if (places_.pinned > static_cast<std::int64_t>(experts)) {
    refuse("pinned_experts", fmt::format("pinned_experts = {}: a rank has {} experts of '{}'\nwrite at most {}",
                                         places_.pinned, experts, group.name, experts));
  }
}

}  // namespace orthant::offload
