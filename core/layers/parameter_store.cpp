#include "core/layers/parameter_store.h"

#include <orthant/hash.h>
#include <algorithm>
#include <iterator>
#include <set>

#include "core/layers/check_holdings.h"
#include "core/layers/owned_pieces.h"
#include "core/layers/parameter_state.h"
#include "core/layers/state_storage.h"
#include "core/plan/keeper_chain.h"

namespace orthant {

std::uint32_t site_of(const std::string& name) {
  return hash32(name);
}

bool ParamMatrix::neighbours(const ParamRef& a, const ParamRef& b) {
  const Param &p = a.param(), &q = b.param();
  return &a.group() == &b.group() && p.begin + p.elements() == q.begin && p.size[1] == q.size[1];
}

ParamMatrix::ParamMatrix(const std::vector<ParamRef>& refs) : first_(refs.front()) {
  for (std::size_t i = 0; i < refs.size(); ++i) {
    require(i == 0 || neighbours(refs[i - 1], refs[i]), "'{}' does not follow '{}' in one buffer",
            refs[i].param().spec.name, refs[i == 0 ? 0 : i - 1].param().spec.name);
    rows_ += refs[i].param().size[0];
    wants_grad_ = wants_grad_ || refs[i].wants_grad();
  }
}

ParamStore::ParamStore(Plan& plan, Stream& stream, bool begin) : ParamStore(plan) {
  check_holdings(*this, plan, stream);
  const HookContext at{.stream = stream};
  for (auto& group : groups_) {
    allocate(*group, plan, stream);
    if (begin) {
      initialise(*group, plan, stream);
      start_averages(*group, stream);
    }
    plan.keepers().release(*group, Held::state, at);
  }
  for (const GateStateSpec& spec : gate_state_table(plan.settings(), plan.links())) {
    if (plan.holds_layer(spec.layer)) {
      const MemoryScope as(plan.device(), MemoryKind::states);
      const Tensor value = plan.device().empty(DType::f32, {plan.settings().moe.columns()});
      stream.fill(value, 0);
      const bool written = plan.stage_members().front() == plan.mesh().rank();
      gate_states_.push_back({spec.name, spec.layer, value, written, spec.learns});
    }
  }
  refresh_weights(plan, Change::start, at);
}

ParamStore::ParamStore(Plan& plan) {
  const SharedLinks links = plan.shared_links();  // sharings_ point into it
  check_storage(plan.settings(), *links);
  for (const LayerSpecs& layer : parameters_of(*links)) {
    add_layer(plan, layer);
  }
  sharings_.clear();
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    ParamGroup& group = *groups_[i];
    group.id = static_cast<int>(i);
    group.padded = group.elements;
    group.owned_elements = group.elements;
    group.owner = group.sum->rank() == 0;
    group.share_unit = share_unit_of(group, plan.settings());
    const bool narrow = !group.frozen && plan.settings().optimizer.gradient_dtype == ComputeType::bf16;
    group.grad_dtype = narrow ? DType::bf16 : DType::f32;
    plan.keepers().adopt(group);
    check_blocks(group, plan.settings(), plan.keepers().holder_of(group));
    group.brief_grad = group.frozen || (plan.settings().optimizer.in_backward && !group.away.grad);
    lay_states(group, plan.settings());
  }
  make_index();
}

// A model of many layers or experts is asked for each of its parameters: no search among all of them.
void ParamStore::make_index() {
  for (const auto& group : groups_) {
    std::set<int> layers;
    for (const Param& param : group->params) {
      by_name_.insert({param.spec.name, {group.get(), &param}});
      layers.insert(param.spec.layers.begin(), param.spec.layers.end());
    }
    for (const int layer : layers) {
      by_layer_[layer].push_back(group.get());
    }
  }
}

// Every rank must make the same groups in the same order, so what makes one new may not depend on the rank: where
// stages have a parameter in common its sum is over other ranks than the rest's there, but not on the stages between.
Group& ParamStore::sum_group(Plan& plan, const ParamSpec& spec, const std::vector<int>& members) {
  std::set<int> stages;
  for (int user : spec.layers) {
    stages.insert(plan.stage_of_layer(user));
  }
  const std::string purpose = stages.size() < 2 ? std::string("sum of gradients")
                                                : fmt::format("sum of gradients, stages {}", fmt::join(stages, " "));
  Group& sum = plan.group(purpose, members);
  if (std::find(sums_.begin(), sums_.end(), &sum) == sums_.end()) {
    sums_.push_back(&sum);
    plan.keepers().sum_group(plan.mesh(), sum);
  }
  return sum;
}

// What Plan::sum_members and Plan::holders look at.
static bool divided_alike(const Plan& plan, const ParamSpec& a, const ParamSpec& b) {
  const bool same_layers =
      a.layers == b.layers || (a.layers.size() == 1 && b.layers.size() == 1 &&
                               plan.stage_of_layer(a.layers.front()) == plan.stage_of_layer(b.layers.front()));
  const bool same_units = !a.repeats || (a.global == b.global && std::equal(a.units, a.units + 2, b.units));
  return same_layers && same_units && a.region == b.region && a.repeats == b.repeats &&
         a.expert.has_value() == b.expert.has_value() && a.split[0] == b.split[0] && a.split[1] == b.split[1];
}

const ParamStore::Sharing& ParamStore::sharing(Plan& plan, const ParamSpec& spec) {
  const auto known = std::find_if(sharings_.rbegin(), sharings_.rend(),
                                  [&](const Sharing& s) { return divided_alike(plan, *s.of, spec); });
  if (known != sharings_.rend()) {
    return *known;
  }
  const std::vector<int> members = plan.sum_members(spec);
  Group& sum = sum_group(plan, spec, members);
  const int first_holder = plan.holders(spec).front();
  const bool counted = std::find(members.begin(), members.end(), first_holder) != members.end();
  return sharings_.emplace_back(Sharing{&spec, &sum, counted});
}

// One group for each set of ranks that gradients are summed over. Every rank asks for every group in the table's order,
// held or not, so that they are made in one order everywhere.
void ParamStore::add_layer(Plan& plan, const LayerSpecs& layer) {
  std::vector<std::unique_ptr<ParamGroup>> made;
  for (const ParamSpec& spec : layer.params) {
    const Sharing of = sharing(plan, spec);
    Group& sum = *of.sum;
    const bool elsewhere =
        std::none_of(spec.layers.begin(), spec.layers.end(), [&](int user) { return plan.holds_layer(user); });
    if (elsewhere && !spec.layers.empty()) {
      continue;
    }
    Param param{.spec = spec};
    if (!plan.place(param)) {
      continue;
    }
    param.counted = of.counted;
    auto at = std::find_if(made.begin(), made.end(), [&](const auto& group) { return group->sum == &sum; });
    if (at == made.end()) {
      at = made.insert(made.end(), std::make_unique<ParamGroup>());
      (*at)->name = made.size() == 1 ? layer.name : fmt::format("{}, {}", layer.name, name_of(spec.region));
      (*at)->experts = layer.experts;
      (*at)->frozen = true;
      (*at)->sum = &sum;
    }
    ParamGroup& group = **at;
    std::vector<int> users;
    std::copy_if(spec.layers.begin(), spec.layers.end(), std::back_inserter(users),
                 [&](int user) { return plan.holds_layer(user); });
    group.layer = users.empty() ? layer.layer : *std::min_element(users.begin(), users.end());
    group.scattered = group.scattered || users.size() < spec.layers.size();
    group.frozen = group.frozen && spec.frozen;
    param.begin = group.elements;
    group.elements += param.elements();
    group.params.push_back(param);
  }
  std::move(made.begin(), made.end(), std::back_inserter(groups_));
}

void ParamStore::allocate(ParamGroup& group, const Plan& plan, Stream& stream) {
  Device& device = plan.device();
  const Settings& settings = plan.settings();
  const DType compute = compute_type(settings);
  const Shape owned{group.owned_elements};
  auto zeros = [&](MemoryKind kind, DType dtype, Shape shape) {
    const MemoryScope as(device, kind);
    Tensor t = device.empty(dtype, shape);
    stream.fill(t, 0);
    return t;
  };
  if (group.whole_weight) {
    group.weight = zeros(MemoryKind::weights, compute, {group.padded});
    group.owned_weight = group.weight.slice(group.owned_begin, owned);
  } else {
    group.owned_weight = zeros(MemoryKind::weights, compute, owned);
  }
  if (!group.brief_grad && group.whole_grad) {
    group.grad = zeros(MemoryKind::gradients, group.grad_dtype, {group.padded});
    group.owned_grad = group.grad.slice(group.owned_begin, owned);
  } else if (!group.brief_grad) {
    group.owned_grad = zeros(MemoryKind::gradients, group.grad_dtype, owned);
  }
  const bool own_master =
      compute == DType::f32 || group.frozen || settings.optimizer.master_weights == MasterWeights::none;
  group.master = own_master ? group.owned_weight : zeros(MemoryKind::states, DType::f32, owned);
  allocate_states(group, device, stream);
  for (PluginState& state : group.plugin_states) {
    const Shape shape = state.kind == StateKind::owned    ? owned
                        : state.kind == StateKind::summed ? Shape{group.padded}
                                                          : state.shape;
    state.tensor = zeros(MemoryKind::states, state.dtype, shape);
  }
}

void ParamStore::initialise(ParamGroup& group, const Plan& plan, Stream& stream) {
  for (const Param& p : group.params) {
    for (const OwnedPiece& piece : owned_pieces(group, p)) {
      initialise(group, p, piece, plan, stream);
    }
  }
}

// Some rows at a time: bf16 weights without a master take memory for their f32 numbers.
void ParamStore::initialise(ParamGroup& group, const Param& p, const OwnedPiece& piece, const Plan& plan,
                            Stream& stream) {
  const RandomKey key{plan.settings().run.seed, Purpose::weight, site_of(p.spec.name), 0};
  const std::int64_t columns = p.spec.global.rank() > 1 ? p.spec.global[1] : 1;
  const std::int64_t most_rows = std::max<std::int64_t>(most_widened / piece.size[1], 1);
  for (std::int64_t row = 0; row < piece.size[0]; row += most_rows) {
    const Shape shape{std::min(most_rows, piece.size[0] - row), piece.size[1]};
    const Tensor to = group.master.slice(piece.begin + row * piece.size[1], shape);
    const Tensor w = to.dtype() == DType::f32 ? to : plan.device().empty(DType::f32, shape);
    if (p.spec.init == Init::normal) {
      stream.init_normal(w, key, p.spec.std, {piece.offset[0] + row, piece.offset[1], columns});
    } else {
      stream.fill(w, p.spec.init == Init::ones ? 1 : 0);
    }
    if (to.dtype() != DType::f32) {
      stream.cast(to, w);
    }
  }
}

void ParamStore::make_grad(ParamGroup& group, Stream& s) const {
  if (!group.brief_grad || group.owned_grad.defined()) {
    return;
  }
  const MemoryScope as(s.device(), MemoryKind::gradients);
  if (!group.whole_grad) {
    group.owned_grad = s.device().empty(group.grad_dtype, {group.owned_elements});
    return;
  }
  group.grad = s.device().empty(group.grad_dtype, {group.padded});
  group.owned_grad = group.grad.slice(group.owned_begin, {group.owned_elements});
  if (group.padded > group.elements) {
    s.fill(group.grad.slice(group.elements, {group.padded - group.elements}), 0);
  }
}

void ParamStore::drop_grad(ParamGroup& group) const {
  if (group.brief_grad) {
    group.grad = {};
    group.owned_grad = {};
  }
}

ParamRef ParamStore::ref(const std::string& name) const {
  const Found found = find(name);
  require(found.group != nullptr, "this rank holds no parameter '{}'", name);
  return {*found.group, static_cast<std::size_t>(found.param - found.group->params.data())};
}

bool ParamStore::holds(const std::string& name) const {
  return find(name).group != nullptr;
}

ParamStore::Found ParamStore::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? Found{nullptr, nullptr} : found->second;
}

std::vector<ParamGroup*> ParamStore::groups_of_layer(int layer) const {
  const auto found = by_layer_.find(layer);
  return found == by_layer_.end() ? std::vector<ParamGroup*>() : found->second;
}

Tensor ParamStore::gate_state(int layer) const {
  const auto found =
      std::find_if(gate_states_.begin(), gate_states_.end(), [&](const GateState& s) { return s.layer == layer; });
  return found == gate_states_.end() ? Tensor() : found->value;
}

void ParamStore::refresh_weights(const Plan& plan, Change why, const HookContext& at) {
  for (auto& group : groups_) {
    with_held(plan.keepers(), *group, Held::state, at, [&](Stream& home) {
      if (group->owned_weight.dtype() != group->master.dtype()) {
        home.cast(group->owned_weight, group->master);
      } else if (group->owned_weight.data() != group->master.data()) {
        home.copy(group->owned_weight, group->master);
      }
      plan.keepers().weight_ready(*group, why, at);
      plan.keepers().after_step(*group, why, at);
    });
  }
  plan.keepers().finish_updates(at);
}

std::int64_t ParamStore::elements() const {
  std::int64_t n = 0;
  for (const auto& group : groups_) {
    n += group->elements;
  }
  return n;
}

}  // namespace orthant
