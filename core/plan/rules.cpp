// What the plan derives by rule from axes and dims: who holds which slice of tokens, parameters and layers. (What
// plugins bind, and how the plan is frozen and printed: plan.cpp.)
#include <orthant/plan.h>
#include <orthant/settings.h>

#include <algorithm>

#include "core/plan/units_error.h"

namespace orthant {

namespace {

bool has(const std::vector<AxisId>& axes, AxisId axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

AxisId axis_count(const Mesh& mesh) {
  return static_cast<AxisId>(mesh.axes().size());
}

const AxisSpec& spec_of(const Mesh& mesh, AxisId axis) {
  return mesh.axes()[axis];
}

bool is_carved(const Mesh& mesh, AxisId axis) {
  return !spec_of(mesh, axis).carve_of.empty();
}

std::string counted(std::int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}
const char* do_not(std::int64_t n) {
  return n == 1 ? "does not" : "do not";
}

}  // namespace

std::vector<AxisId> Plan::axes_of(Dim dim, Region region) const {
  std::vector<AxisId> found;
  for (AxisId axis = 0; axis < axis_count(mesh_); ++axis) {
    if (mesh_.splits(axis, dim, region)) {
      found.push_back(axis);
    }
  }
  // Which sequences a worker trains on must not depend on where its axis stands among the others.
  std::stable_partition(found.begin(), found.end(), [&](AxisId axis) { return spec_of(mesh_, axis).independent; });
  return found;
}

Range Plan::part(Dim dim, std::int64_t n, Region region, int rank) const {
  Range range{0, n};
  for (AxisId axis : axes_of(dim, region)) {
    const AxisSpec& spec = mesh_.axes()[axis];
    if (range.count % spec.size != 0) {
      throw UnitsError(fmt::format("{} of dim '{}' in region '{}' {} divide among the {} ranks of axis '{}'",
                                   counted(n, "unit"), name_of(dim), name_of(region), do_not(n), spec.size, spec.name),
                       spec.name, dim, region, n);
    }
    range.count /= spec.size;
    range.begin += range.count * mesh_.coordinate(axis, rank);
  }
  return range;
}

std::vector<Range> Plan::positions(Region region, int rank, int space) const {
  std::vector<Range> runs = {{0, spaces_.at(static_cast<std::size_t>(space)).positions}};
  for (AxisId axis : axes_of(Dim::position, region)) {
    const AxisSpec& spec = spec_of(mesh_, axis);
    if (std::find(spec.splits.begin(), spec.splits.end(), Dim::position) == spec.splits.end()) {
      continue;
    }
    std::int64_t held = 0;
    for (const Range& run : runs) {
      held += run.count;
    }
    const std::int64_t parts = spec.zigzag ? 2 * std::int64_t{spec.size} : spec.size;
    if (held % parts != 0) {
      const std::string refused = fmt::format("{} of a sequence {} divide into {} parts for the {} ranks of axis '{}'",
                                              counted(held, "position"), do_not(held), parts, spec.size, spec.name);
      const Space& of = spaces_.at(static_cast<std::size_t>(space));
      throw space == 0 ? LayoutError(refused, spec.name, Dim::position)
                       : LayoutError(fmt::format("{}, in the token space '{}'", refused, of.name), spec.name, {});
    }
    const std::int64_t own = mesh_.coordinate(axis, rank);
    std::vector<std::int64_t> wanted = {own};
    if (spec.zigzag) {
      wanted.push_back(parts - 1 - own);
    }
    std::vector<Range> next;
    for (std::int64_t number : wanted) {
      // The part as places in the runs, laid end to end.
      std::int64_t begin = number * (held / parts), left = held / parts;
      for (const Range& run : runs) {
        const std::int64_t take = std::min(left, run.count - begin);
        if (take > 0) {
          next.push_back({run.begin + begin, take});
          left -= take;
        }
        begin = std::max<std::int64_t>(0, begin - run.count);
      }
    }
    runs = std::move(next);
  }
  return runs;
}

std::int64_t Plan::held_positions(Region region, int rank, int space) const {
  std::int64_t held = 0;
  for (const Range& run : positions(region, rank, space)) {
    held += run.count;
  }
  return held;
}

Range Plan::rows(Region region, std::int64_t tokens, int rank) const {
  Range range{0, tokens};
  for (AxisId axis : axes_of(Dim::position, region)) {
    const AxisSpec& spec = spec_of(mesh_, axis);
    const RegionDim here{region, Dim::position};
    if (std::find(spec.splits_in.begin(), spec.splits_in.end(), here) == spec.splits_in.end()) {
      continue;
    }
    if (range.count % spec.size != 0) {
      throw LayoutError(
          fmt::format("the {} of a micro-batch {} divide among the {} ranks of axis '{}', which splits them in region "
                      "'{}'",
                      counted(range.count, "token"), do_not(range.count), spec.size, spec.name, name_of(region)),
          spec.name, Dim::position);
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
      if (!has(found, axis)) {
        found.push_back(axis);
      }
    }
  };
  for (const auto& dim : spec.split) {
    if (dim.has_value()) {
      add(*dim);
    }
  }
  if (spec.expert.has_value()) {
    add(Dim::expert);
  }
  return found;
}

Range Plan::share(const ParamSpec& spec, int dimension, int rank) const {
  const std::int64_t n = dimension < spec.global.rank() ? spec.global[dimension] : 1;
  const auto& dim = spec.split[dimension];
  if (!dim.has_value()) {
    return {0, n};
  }
  const std::int64_t units = spec.units[dimension] == 0 ? n : spec.units[dimension];
  if (!spec.repeats) {
    const Range part_of_units = part(*dim, units, spec.region, rank);
    return {part_of_units.begin * (n / units), part_of_units.count * (n / units)};
  }
  Range range{0, units};
  for (AxisId axis : axes_of(*dim, spec.region)) {
    const AxisSpec& along = spec_of(mesh_, axis);
    const std::int64_t own = mesh_.coordinate(axis, rank);
    if (range.count % along.size == 0) {
      range.count /= along.size;
      range.begin += range.count * own;
    } else if (along.size % range.count == 0) {
      range.begin += own * range.count / along.size;
      range.count = 1;
    } else {
      throw UnitsError(fmt::format("{} of dim '{}' of '{}' and the {} ranks of axis '{}': one must divide the other",
                                   counted(units, "unit"), name_of(*dim), spec.name, along.size, along.name),
                       along.name, *dim, spec.region, units);
    }
  }
  return {range.begin * (n / units), range.count * (n / units)};
}

bool Plan::same_slice(const ParamSpec& spec, int a, int b) const {
  return share(spec, 0, a).begin == share(spec, 0, b).begin && share(spec, 1, a).begin == share(spec, 1, b).begin;
}

std::vector<int> Plan::stages_of(const ParamSpec& spec) const {
  std::vector<int> stages;
  for (const int layer : spec.layers) {
    stages.push_back(stage_of_layer(layer));
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

std::vector<int> Plan::sum_members(const ParamSpec& spec) const {
  return sum_members(spec, mesh_.rank());
}

std::vector<int> Plan::holders(const ParamSpec& spec) const {
  return holders(spec, mesh_.rank());
}

std::vector<int> Plan::sum_members(const ParamSpec& spec, int rank) const {
  const std::vector<AxisId> own = axes_of(spec);
  std::vector<AxisId> vary;
  for (Dim dim : {Dim::batch, Dim::position}) {
    for (AxisId axis : axes_of(dim, spec.region)) {
      if (!has(own, axis) && !has(vary, axis) && !spec_of(mesh_, axis).independent) {
        vary.push_back(axis);
      }
    }
  }
  return members(spec, own, vary, rank);
}

std::vector<int> Plan::holders(const ParamSpec& spec, int rank) const {
  const std::vector<AxisId> own = axes_of(spec);
  std::vector<AxisId> vary;
  for (AxisId axis = 0; axis < axis_count(mesh_); ++axis) {
    if (!has(own, axis) && !is_carved(mesh_, axis) && !spec_of(mesh_, axis).independent) {
      vary.push_back(axis);
    }
  }
  return members(spec, own, vary, rank);
}

std::vector<int> Plan::members(const ParamSpec& spec, const std::vector<AxisId>& own, const std::vector<AxisId>& vary,
                               int rank) const {
  const std::vector<int> stages = stages_of(spec);
  const bool in_common = stages.size() > 1 && std::binary_search(stages.begin(), stages.end(), stage_of_rank(rank));
  std::vector<AxisId> free, keep;
  for (AxisId axis = 0; axis < axis_count(mesh_); ++axis) {
    if (is_carved(mesh_, axis)) {
      if (has(own, axis)) {
        keep.push_back(axis);
      }
    } else if (axis == layer_axis_ ? in_common : has(vary, axis) || (spec.repeats && has(own, axis))) {
      free.push_back(axis);
    }
  }
  std::vector<int> found = mesh_.members_keeping(free, keep, rank);
  std::erase_if(found, [&](int other) {
    return (in_common && !std::binary_search(stages.begin(), stages.end(), stage_of_rank(other))) ||
           (spec.repeats && !same_slice(spec, other, rank));
  });
  return found;
}

bool Plan::place(Param& param, int rank) const {
  const ParamSpec& spec = param.spec;
  if (spec.expert.has_value()) {
    const Range range = part(Dim::expert, settings_.moe.experts, spec.region, rank);
    if (*spec.expert < range.begin || *spec.expert >= range.begin + range.count) {
      return false;
    }
  }
  for (int i = 0; i < 2; ++i) {
    const Range range = share(spec, i, rank);
    param.offset[i] = range.begin;
    param.size[i] = range.count;
  }
  return spec.layers.empty() || std::any_of(spec.layers.begin(), spec.layers.end(),
                                            [&](int layer) { return stage_of_layer(layer) == stage_of_rank(rank); });
}

bool Plan::counts_tokens(Region region, bool jointly) const {
  for (AxisId axis = 0; axis < axis_count(mesh_); ++axis) {
    const bool splits =
        mesh_.splits(axis, Dim::batch, region) || (!jointly && mesh_.splits(axis, Dim::position, region));
    if (!is_carved(mesh_, axis) && axis != layer_axis_ && !splits && mesh_.coordinate(axis) != 0) {
      return false;
    }
  }
  return true;
}

int Plan::stage_of_rank(int rank) const {
  return layer_axis_.has_value() ? mesh_.coordinate(*layer_axis_, rank) : 0;
}

std::vector<int> Plan::stage_members() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < mesh_.world_size(); ++rank) {
    if (stage_of_rank(rank) == stage() && mesh_.worker(rank) == mesh_.worker()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

int Plan::stage_of_layer(int layer) const {
  if (stages_ == 1) {
    return 0;
  }
  const auto after = std::upper_bound(cut_.begin(), cut_.end(), layer);
  require(after != cut_.begin() && after != cut_.end(), "the model has no layer {}", layer);
  return static_cast<int>(after - cut_.begin() - 1) % stages_;
}

std::pair<int, int> Plan::layers_of_chunk(int chunk) const {
  const std::size_t piece = static_cast<std::size_t>(chunk * stages_ + stage());
  require(piece + 1 < cut_.size(), "stage {} has no chunk {}", stage(), chunk);
  return {cut_[piece], cut_[piece + 1]};
}

}  // namespace orthant
