#include <orthant/plan.h>

#include <algorithm>

#include "core/default_seams.h"

namespace orthant {

struct Plan::BoundEntry {
  Site site;
  Dim moves;
  std::unique_ptr<Boundary> boundary;
  std::string by;
};

const char* name_of(Region region) {
  switch (region) {
    case Region::embedding: return "embedding";
    case Region::norm: return "norm";
    case Region::attention: return "attention";
    case Region::attention_core: return "attention core";
    case Region::ffn: return "ffn";
    case Region::router: return "router";
    case Region::experts: return "experts";
    case Region::head: return "head";
  }
  return "?";
}

Plan::Plan(const Settings& settings, Mesh& mesh, Device* device) : settings_(settings), mesh_(mesh), device_(device) {}
Plan::~Plan() = default;

Device& Plan::device() const {
  require(device_ != nullptr, "a dry run has no device");
  return *device_;
}

namespace {

template <class Seam>
void bind_once(std::unique_ptr<Seam>& place, std::unique_ptr<Seam> seam, const char* what, const std::string& by,
               std::vector<std::string>& log) {
  if (place != nullptr) {
    throw ConfigError(
        fmt::format("plugin '{}' binds a second {}: at most one is possible ({})", by, what, fmt::join(log, "; ")));
  }
  place = std::move(seam);
  log.push_back(fmt::format("{}: {}", by, what));
}

}  // namespace

void Plan::bind(Site site, std::unique_ptr<Boundary> boundary, Dim moves) {
  for (const BoundEntry& other : boundaries_) {
    if (other.site == site && other.moves == moves) {
      throw ConfigError(fmt::format("plugins '{}' and '{}' both move dim {} at the same site ({} {})", other.by,
                                    current_, name_of(moves), site.side == Side::enter ? "entering" : "leaving",
                                    name_of(site.region)));
    }
  }
  bound_by_.push_back(fmt::format("{}: boundary {} {} moves {}", current_,
                                  site.side == Side::enter ? "entering" : "leaving", name_of(site.region),
                                  name_of(moves)));
  boundaries_.push_back({site, moves, std::move(boundary), current_});
}

void Plan::bind(std::unique_ptr<TokenExchange> exchange) {
  bind_once(exchange_, std::move(exchange), "token exchange", current_, bound_by_);
}
void Plan::bind(std::unique_ptr<Schedule> schedule) {
  bind_once(schedule_, std::move(schedule), "schedule", current_, bound_by_);
}
void Plan::bind(std::unique_ptr<AttentionCore> core) {
  bind_once(core_, std::move(core), "attention core", current_, bound_by_);
}
void Plan::chain(std::unique_ptr<Keeper> keeper) {
  keepers_.push_back(std::move(keeper));
  bound_by_.push_back(current_ + ": keeper");
}
void Plan::chain(std::unique_ptr<Stash> stash) {
  stashes_.push_back(std::move(stash));
  bound_by_.push_back(current_ + ": stash");
}
void Plan::split_in(Region region, Dim dim, AxisId axis) {
  region_splits_.push_back({region, dim, axis});
}

std::vector<AxisId> Plan::axes_of(Dim dim, Region region) const {
  std::vector<AxisId> found;
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh_.axes().size()); ++axis) {
    bool splits = mesh_.splits(axis, dim);
    for (const RegionSplit& split : region_splits_) {
      splits = splits || (split.region == region && split.dim == dim && split.axis == axis);
    }
    if (splits) {
      found.push_back(axis);
    }
  }
  return found;
}

Range Plan::part(Dim dim, std::int64_t n, Region region, int rank) const {
  Range range{0, n};
  for (AxisId axis : axes_of(dim, region)) {
    const AxisSpec& spec = mesh_.axes()[static_cast<std::size_t>(axis)];
    if (range.count % spec.size != 0) {
      throw LayoutError(fmt::format("{} units of dim '{}' in region '{}' do not divide among the {} ranks of axis '{}'",
                                    n, name_of(dim), name_of(region), spec.size, spec.name),
                        spec.name, dim);
    }
    range.count /= spec.size;
    range.begin += range.count * mesh_.coordinate(axis, rank);
  }
  return range;
}

std::vector<AxisId> Plan::axes_of(const ParamSpec& spec) const {
  std::vector<AxisId> found;
  auto add = [&](Dim dim) {
    for (AxisId axis : axes_of(dim, spec.region)) {
      if (std::find(found.begin(), found.end(), axis) == found.end()) {
        found.push_back(axis);
      }
    }
  };
  for (const auto& dim : spec.split) {
    if (dim.has_value()) {
      add(*dim);
    }
  }
  for (const auto& [dim, index] : spec.inside) {
    add(dim);
  }
  return found;
}

namespace {

bool has(const std::vector<AxisId>& axes, AxisId axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

bool is_carved(const Mesh& mesh, AxisId axis) {
  return !mesh.axes()[static_cast<std::size_t>(axis)].carve_of.empty();
}

}  // namespace

std::vector<int> Plan::sum_members(const ParamSpec& spec) const {
  const std::vector<AxisId> own = axes_of(spec);
  std::vector<AxisId> vary, keep;
  for (Dim dim : {Dim::batch, Dim::position}) {
    for (AxisId axis : axes_of(dim, spec.region)) {
      if (!has(own, axis) && !has(vary, axis)) {
        vary.push_back(axis);
      }
    }
  }
  for (AxisId axis : own) {
    if (is_carved(mesh_, axis)) {
      keep.push_back(axis);
    }
  }
  return mesh_.members_keeping(vary, keep, mesh_.rank());
}

std::vector<int> Plan::holders(const ParamSpec& spec) const {
  const std::vector<AxisId> own = axes_of(spec);
  std::vector<AxisId> vary, keep;
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh_.axes().size()); ++axis) {
    if (has(own, axis)) {
      if (is_carved(mesh_, axis)) {
        keep.push_back(axis);
      }
    } else if (!is_carved(mesh_, axis)) {
      vary.push_back(axis);
    }
  }
  return mesh_.members_keeping(vary, keep, mesh_.rank());
}

bool Plan::place(Param& param) const {
  const ParamSpec& spec = param.spec;
  for (const auto& [dim, index] : spec.inside) {
    const std::int64_t total = dim == Dim::expert ? settings_.moe.experts : settings_.model.layers;
    const Range range = part(dim, total, spec.region);
    if (index < range.begin || index >= range.begin + range.count) {
      return false;
    }
  }
  for (int i = 0; i < 2; ++i) {
    const std::int64_t n = i < spec.global.rank() ? spec.global[i] : 1;
    param.offset[i] = 0;
    param.size[i] = n;
    if (spec.split[i].has_value()) {
      const std::int64_t units = spec.units[i] == 0 ? n : spec.units[i];
      const Range range = part(*spec.split[i], units, spec.region);
      param.offset[i] = range.begin * (n / units);
      param.size[i] = range.count * (n / units);
    }
  }
  return true;
}

Group& Plan::group(const std::string& purpose, const std::vector<int>& members) {
  std::string key = fmt::format("{} {}", purpose, fmt::join(members, ","));
  for (auto& [known, group] : groups_) {
    if (known == key) {
      return *group;
    }
  }
  groups_.emplace_back(key, &mesh_.group_of(purpose, members));
  return *groups_.back().second;
}

Tensor Plan::cross(Site site, Tensor x, Stream& s) const {
  for (const BoundEntry& entry : boundaries_) {
    if (entry.site == site) {
      x = entry.boundary->forward(std::move(x), s);
    }
  }
  return x;
}

Tensor Plan::cross_back(Site site, Tensor dy, Stream& s) const {
  for (auto entry = boundaries_.rbegin(); entry != boundaries_.rend(); ++entry) {
    if (entry->site == site) {
      dy = entry->boundary->backward(std::move(dy), s);
    }
  }
  return dy;
}

const Schedule& Plan::schedule() const {
  return *schedule_;
}
AttentionCore& Plan::attention_core() const {
  return *core_;
}
Stash& Plan::stash() const {
  return *stashes_.front();
}

void Plan::freeze() {
  if (schedule_ == nullptr) {
    schedule_ = make_single_stage_schedule();
  }
  if (core_ == nullptr) {
    core_ = make_local_attention();
  }
  if (stashes_.size() > 1) {
    throw ConfigError("two plugins bind a stash: at most one is supported");
  }
  if (stashes_.empty()) {
    stashes_.push_back(make_memory_stash());
  }
}

std::string Plan::to_string() const {
  std::string text = fmt::format("world size {}\n", mesh_.world_size());
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh_.axes().size()); ++axis) {
    const AxisSpec& spec = mesh_.axes()[static_cast<std::size_t>(axis)];
    std::string splits;
    for (Dim dim : spec.splits) {
      splits += std::string(splits.empty() ? "" : ", ") + name_of(dim);
    }
    text += fmt::format("axis {:<10} size {:<3} splits {}{}\n", spec.name, spec.size, splits,
                        spec.carve_of.empty() ? "" : " (carved)");
    std::vector<std::vector<int>> seen;
    for (int rank = 0; rank < mesh_.world_size(); ++rank) {
      std::vector<int> members = mesh_.members(std::span<const AxisId>(&axis, 1), rank);
      if (std::find(seen.begin(), seen.end(), members) == seen.end()) {
        text += fmt::format("  group [{}]\n", fmt::join(members, " "));
        seen.push_back(std::move(members));
      }
    }
  }
  for (const std::string& line : bound_by_) {
    text += line + "\n";
  }
  return text;
}

}  // namespace orthant
