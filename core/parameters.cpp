#include "core/parameters.h"

#include "core/layers/parameters.h"

namespace orthant {

std::uint32_t site_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;  // FNV-1a
  for (char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return hash;
}

namespace {

// Two parameters of one class are summed over the same ranks on every rank, so one group serves both.
std::string sum_class(const ParamSpec& spec) {
  std::string name = fmt::format("gradients of {}", name_of(spec.region));
  for (const auto& dim : spec.split) {
    name += dim.has_value() ? fmt::format(", split by {}", name_of(*dim)) : "";
  }
  for (const auto& [dim, index] : spec.inside) {
    name += fmt::format(", one {}", name_of(dim));
  }
  return name;
}

}  // namespace

ParamStore::ParamStore(Plan& plan, Stream& stream) : ParamStore(plan) {
  for (auto& group : groups_) {
    allocate(*group, plan, stream);
  }
}

ParamStore::ParamStore(Plan& plan) {
  // Every rank meets every class in the table's order, so that group creation is in one order everywhere.
  std::vector<std::pair<std::vector<int>, Group*>> sums;
  for (const LayerSpecs& layer : parameter_table(plan.settings())) {
    auto group = std::make_unique<ParamGroup>();
    group->id = static_cast<int>(groups_.size());
    group->name = layer.name;
    std::vector<int> members;
    for (const ParamSpec& spec : layer.params) {
      const std::vector<int> own = plan.sum_members(spec);
      Group& sum = plan.group("sum of gradients", own);
      require(group->sum == nullptr || own == members,
              "{} and the rest of '{}' are summed over different ranks: they need groups of their own ({})", spec.name,
              layer.name, sum_class(spec));
      members = own;
      group->sum = &sum;
      Param param{.spec = spec};
      if (plan.place(param)) {
        param.counted = plan.holders(spec).front() == plan.mesh().rank();
        param.begin = group->elements;
        group->elements += param.elements();
        group->params.push_back(param);
      }
    }
    if (!group->params.empty()) {
      groups_.push_back(std::move(group));
    }
  }
}

void ParamStore::allocate(ParamGroup& group, const Plan& plan, Stream& stream) {
  Device& device = plan.device();
  const Settings& settings = plan.settings();
  const Shape flat{group.elements};
  group.owned_elements = group.elements;
  group.master = device.empty(DType::f32, flat);
  group.weight = settings.run.dtype == ComputeType::fp32 ? group.master : device.empty(DType::bf16, flat);
  group.grad = device.empty(DType::f32, flat);
  group.moment1 = device.empty(DType::f32, flat);
  stream.fill(group.grad, 0);
  stream.fill(group.moment1, 0);
  if (settings.optimizer.name == OptimizerKind::adamw) {
    group.moment2 = device.empty(DType::f32, flat);
    stream.fill(group.moment2, 0);
  }
  for (const Param& p : group.params) {
    Tensor w = group.master.slice(p.begin, {p.size[0], p.size[1]});
    if (p.spec.init == Init::normal) {
      const RandomKey key{settings.run.seed, Purpose::weight, site_of(p.spec.name), 0};
      const std::int64_t columns = p.spec.global.rank() > 1 ? p.spec.global[1] : 1;
      stream.init_normal(w, key, p.spec.std, {p.offset[0], p.offset[1], columns});
    } else {
      stream.fill(w, p.spec.init == Init::ones ? 1 : 0);
    }
  }
  if (settings.run.dtype != ComputeType::fp32) {
    stream.cast(group.weight, group.master);
  }
}

ParamGroup& ParamStore::group(const std::string& name) const {
  for (const auto& group : groups_) {
    if (group->name == name) {
      return *group;
    }
  }
  fail("this rank holds no parameter group '{}'", name);
}

ParamStore::Found ParamStore::find(const std::string& name) const {
  for (const auto& group : groups_) {
    for (const Param& param : group->params) {
      if (param.spec.name == name) {
        return {group.get(), &param};
      }
    }
  }
  return {nullptr, nullptr};
}

void ParamStore::refresh_weights(Stream& stream) {
  for (auto& group : groups_) {
    if (group->weight.dtype() != DType::f32) {
      stream.cast(group->weight, group->master);
    }
  }
}

std::int64_t ParamStore::elements() const {
  std::int64_t n = 0;
  for (const auto& group : groups_) {
    n += group->elements;
  }
  return n;
}

}  // namespace orthant
