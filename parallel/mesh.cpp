#include <orthant/mesh.h>

#include <algorithm>
#include <numeric>

#include "parallel/intercepted_group.h"
#include "parallel/staged_group.h"

namespace orthant {

const char* name_of(Dim dim) {
  switch (dim) {
    case Dim::batch: return "batch";
    case Dim::position: return "position";
    case Dim::head: return "head";
    case Dim::ffn: return "ffn";
    case Dim::vocab: return "vocab";
    case Dim::expert: return "expert";
    case Dim::layer: return "layer";
  }
  return "?";
}

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

namespace {

// More ranks are a mistake, and their product could overflow.
constexpr std::int64_t max_world = 1 << 20;

bool contains(std::span<const AxisId> axes, AxisId axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

}  // namespace

AxisId Mesh::claim(AxisSpec spec) {
  require(!frozen_, "axis '{}' is claimed after the mesh was frozen: claim axes in Plugin::claim", spec.name);
  if (spec.name.empty()) {
    throw ConfigError("an axis without a name is claimed");
  }
  if (spec.size < 1) {
    throw ConfigError(fmt::format("axis '{}' has size {}: it must be at least 1", spec.name, spec.size));
  }
  for (const AxisSpec& other : axes_) {
    if (other.name == spec.name) {
      throw ConfigError(fmt::format("axis '{}' is claimed twice", spec.name));
    }
  }
  const bool batch_alone = spec.splits == std::vector<Dim>{Dim::batch} && spec.splits_in.empty() &&
                           spec.joins_in.empty() && spec.carve_of.empty();
  if (spec.independent && !batch_alone) {
    throw ConfigError(fmt::format(
        "axis '{}' is independent and splits something else than the batch: workers share nothing of the model",
        spec.name));
  }
  axes_.push_back(std::move(spec));
  return static_cast<AxisId>(axes_.size()) - 1;
}

void Mesh::freeze() {
  std::int64_t world = 1;
  for (const AxisSpec& axis : axes_) {
    world *= axis.carve_of.empty() ? axis.size : 1;
    if (world > max_world) {
      throw LayoutError(
          fmt::format("the axes up to '{}' need {} ranks: at most {} are possible", axis.name, world, max_world),
          axis.name, std::nullopt);
    }
  }
  world_ = static_cast<int>(world);
  stride_.assign(axes_.size(), 1);
  for (std::size_t a = axes_.size(), inner = 1; a-- > 0;) {
    stride_[a] = static_cast<int>(inner);
    inner *= axes_[a].carve_of.empty() ? static_cast<std::size_t>(axes_[a].size) : 1;
  }
  carved_axes_.clear();
  for (AxisId a = 0; a < static_cast<AxisId>(axes_.size()); ++a) {
    carved_axes_.push_back(carved(a) ? find_carved_axes(a) : std::vector<AxisId>());
  }
  for (AxisId a = 0; a < static_cast<AxisId>(axes_.size()); ++a) {
    if (!carved(a)) {
      continue;
    }
    const AxisSpec& axis = axes_[a];
    int available = 1;
    std::string from;
    for (AxisId p : carved_axes_[static_cast<std::size_t>(a)]) {
      available *= axes_[p].size;
      from += (from.empty() ? "" : " x ") + axes_[p].name;
    }
    if (available % axis.size != 0) {
      throw LayoutError(
          fmt::format("axis '{}' of size {} is carved from {} rank{} ({}): its size must divide that number", axis.name,
                      axis.size, available, available == 1 ? "" : "s",
                      from.empty() ? "no axis splits what it is carved from" : "axis " + from),
          axis.name, std::nullopt);
    }
  }
  frozen_ = true;
}

void Mesh::place(int rank, Communicator* communicator) {
  require(frozen_ && rank >= 0 && rank < world_, "rank {} cannot be placed in a mesh of {} ranks", rank, world_);
  require(communicator == nullptr || communicator->size() == world_,
          "the layout needs {} ranks but the communicator has {}", world_,
          communicator == nullptr ? 0 : communicator->size());
  rank_ = rank;
  communicator_ = communicator;
}

bool Mesh::splits(AxisId axis, Dim dim, Region region) const {
  const AxisSpec& spec = axes_[axis];
  const RegionDim here{region, dim};
  if (std::find(spec.splits_in.begin(), spec.splits_in.end(), here) != spec.splits_in.end()) {
    return true;
  }
  return std::find(spec.splits.begin(), spec.splits.end(), dim) != spec.splits.end() &&
         std::find(spec.joins_in.begin(), spec.joins_in.end(), here) == spec.joins_in.end();
}

std::vector<AxisId> Mesh::find_carved_axes(AxisId axis) const {
  const std::vector<RegionDim>& of = axes_[axis].carve_of;
  std::vector<AxisId> plain;
  for (AxisId p = 0; p < static_cast<AxisId>(axes_.size()); ++p) {
    const bool shares = !carved(p) && !axes_[p].independent;
    if (shares && std::any_of(of.begin(), of.end(), [&](RegionDim d) { return splits(p, d.dim, d.region); })) {
      plain.push_back(p);
    }
  }
  return plain;
}

int Mesh::linear(std::span<const AxisId> axes, int rank) const {
  int index = 0;
  for (AxisId axis : axes) {
    index = index * axes_[axis].size + coordinate(axis, rank);
  }
  return index;
}

int Mesh::coordinate(AxisId axis, int rank) const {
  require(stride_.size() == axes_.size(), "a rank's place is asked for before the mesh is frozen");
  const std::size_t a = static_cast<std::size_t>(axis);
  return (carved(axis) ? linear(carved_axes_[a], rank) : rank / stride_[a]) % axes_[a].size;
}

// Ranks that differ along plain axes only are enumerated, in order: the outer axes count last.
std::vector<int> Mesh::members_keeping(std::span<const AxisId> vary, std::span<const AxisId> keep, int rank) const {
  require(stride_.size() == axes_.size(), "members of a group are asked for before the mesh is frozen");
  std::vector<int> found = {rank};
  for (AxisId a = 0; a < static_cast<AxisId>(axes_.size()); ++a) {
    if (carved(a) || !contains(vary, a)) {
      continue;
    }
    const int stride = stride_[static_cast<std::size_t>(a)], base = coordinate(a, rank) * stride;
    std::vector<int> further;
    further.reserve(found.size() * static_cast<std::size_t>(axes_[a].size));
    for (const int other : found) {
      for (int along = 0; along < axes_[a].size; ++along) {
        further.push_back(other - base + along * stride);
      }
    }
    found = std::move(further);
  }
  std::erase_if(found, [&](int other) {
    return std::any_of(keep.begin(), keep.end(),
                       [&](AxisId a) { return carved(a) && coordinate(a, other) != coordinate(a, rank); });
  });
  return found;
}

std::vector<int> Mesh::members(std::span<const AxisId> axes, int rank) const {
  const auto carved_one = std::find_if(axes.begin(), axes.end(), [&](AxisId axis) { return carved(axis); });
  if (carved_one == axes.end()) {
    return members_keeping(axes, {}, rank);
  }
  const AxisSpec& spec = axes_[*carved_one];
  require(axes.size() == 1, "a carved axis ('{}') makes a group only on its own", spec.name);
  const std::vector<AxisId>& plain = carved_axes_[static_cast<std::size_t>(*carved_one)];
  std::vector<int> found;
  for (int other : members_keeping(plain, {}, rank)) {
    if (linear(plain, other) / spec.size == linear(plain, rank) / spec.size) {
      found.push_back(other);
    }
  }
  return found;
}

std::vector<AxisId> Mesh::independent_axes() const {
  std::vector<AxisId> found;
  for (AxisId a = 0; a < static_cast<AxisId>(axes_.size()); ++a) {
    if (axes_[a].independent) {
      found.push_back(a);
    }
  }
  return found;
}

int Mesh::workers() const {
  int count = 1;
  for (AxisId a : independent_axes()) {
    count *= axes_[a].size;
  }
  return count;
}

int Mesh::worker(int rank) const {
  return linear(independent_axes(), rank);
}

std::vector<int> Mesh::worker_members() const {
  std::vector<int> found;
  if (independent_axes().empty()) {
    found.resize(static_cast<std::size_t>(world_));
    std::iota(found.begin(), found.end(), 0);
    return found;
  }
  for (int other = 0; other < world_; ++other) {
    if (worker(other) == worker(rank_)) {
      found.push_back(other);
    }
  }
  return found;
}

bool Mesh::spans_stages(const std::vector<int>& members) const {
  for (AxisId a = 0; a < static_cast<AxisId>(axes_.size()); ++a) {
    if (splits(a, Dim::layer, Region::norm) && std::any_of(members.begin(), members.end(), [&](int member) {
          return coordinate(a, member) != coordinate(a, members.front());
        })) {
      return true;
    }
  }
  return false;
}

Group& Mesh::group(std::span<const AxisId> axes) {
  std::string name;
  for (AxisId axis : axes) {
    require(axis >= 0 && axis < static_cast<AxisId>(axes_.size()), "there is no axis {}: the mesh has {}", axis,
            axes_.size());
    name += (name.empty() ? "" : " x ") + axes_[axis].name;
  }
  return group_of(name, members(axes, rank_));
}

Group& Mesh::world_group(const std::string& name) {
  std::vector<int> everyone(world_);
  std::iota(everyone.begin(), everyone.end(), 0);
  return group_of(name, everyone);
}

Group& Mesh::group_of(const std::string& name, const std::vector<int>& members) {
  require(frozen_, "group '{}' is asked for before the mesh is frozen", name);
  std::unique_ptr<Group> made =
      communicator_ == nullptr ? make_dry_group(name, members, rank_) : communicator_->split(name, members);
  groups_.push_back(spans_stages(members) ? make_staged_group(std::move(made), *running_) : std::move(made));
  return *groups_.back();
}

}  // namespace orthant
