#include <orthant/plan.h>

#include <algorithm>
#include <functional>

#include "core/default_seams.h"
#include "core/layers/cost.h"

namespace orthant {

struct Plan::BoundEntry {
  Site site;
  Dim moves;
  std::unique_ptr<Boundary> boundary;
  std::string by;
};

namespace {

bool has(const std::vector<AxisId>& axes, AxisId axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

AxisId axis_count(const Mesh& mesh) {
  return static_cast<AxisId>(mesh.axes().size());
}

const AxisSpec& spec_of(const Mesh& mesh, AxisId axis) {
  return mesh.axes()[static_cast<std::size_t>(axis)];
}

bool is_carved(const Mesh& mesh, AxisId axis) {
  return !spec_of(mesh, axis).carve_of.empty();
}

}  // namespace

Plan::Plan(const Settings& settings, Mesh& mesh, Device* device) : settings_(settings), mesh_(mesh), device_(device) {
  for (AxisId axis = 0; axis < axis_count(mesh); ++axis) {
    const AxisSpec& spec = spec_of(mesh, axis);
    if (std::find(spec.splits.begin(), spec.splits.end(), Dim::layer) == spec.splits.end()) {
      continue;
    }
    if (layer_axis_.has_value()) {
      throw ConfigError(fmt::format("axes '{}' and '{}' both split the layers: at most one can",
                                    spec_of(mesh, *layer_axis_).name, spec.name));
    }
    layer_axis_ = axis;
    stages_ = spec.size;
  }
}
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
    const auto earlier = std::find_if(
        log.begin(), log.end(), [&](const std::string& line) { return line.ends_with(fmt::format(": {}", what)); });
    throw ConfigError(fmt::format("plugin '{}' binds a second {}: at most one is possible, and '{}' has bound one", by,
                                  what, earlier->substr(0, earlier->find(':'))));
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
std::vector<AxisId> Plan::axes_of(Dim dim, Region region) const {
  std::vector<AxisId> found;
  for (AxisId axis = 0; axis < axis_count(mesh_); ++axis) {
    if (mesh_.splits(axis, dim, region)) {
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

std::vector<Range> Plan::positions(Region region, int rank) const {
  const std::int64_t length = settings_.data.sequence_length;
  std::vector<Range> runs = {{0, length}};
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
      throw LayoutError(fmt::format("{} positions of a sequence do not divide into {} parts for the {} ranks of axis "
                                    "'{}'",
                                    held, parts, spec.size, spec.name),
                        spec.name, Dim::position);
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
          fmt::format("the {} tokens of a micro-batch do not divide among the {} ranks of axis '{}', which "
                      "splits them in region '{}'",
                      range.count, spec.size, spec.name, name_of(region)),
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
      throw LayoutError(
          fmt::format("{} units of dim '{}' of '{}' and the {} ranks of axis '{}': one must divide the other", units,
                      name_of(*dim), spec.name, along.size, along.name),
          along.name, dim);
    }
  }
  return {range.begin * (n / units), range.count * (n / units)};
}

bool Plan::same_slice(const ParamSpec& spec, int a, int b) const {
  return share(spec, 0, a).begin == share(spec, 0, b).begin && share(spec, 1, a).begin == share(spec, 1, b).begin;
}

bool Plan::same_stages(const ParamSpec& spec, int a, int b) const {
  const int stage_a = stage_of_rank(a), stage_b = stage_of_rank(b);
  auto uses = [&](int stage) {
    return std::any_of(spec.layers.begin(), spec.layers.end(),
                       [&](int layer) { return stage_of_layer(layer) == stage; });
  };
  return stage_a == stage_b || (uses(stage_a) && uses(stage_b));
}

std::vector<int> Plan::sum_members(const ParamSpec& spec) const {
  const std::vector<AxisId> own = axes_of(spec);
  std::vector<AxisId> vary;
  for (Dim dim : {Dim::batch, Dim::position}) {
    for (AxisId axis : axes_of(dim, spec.region)) {
      if (!has(own, axis) && !has(vary, axis)) {
        vary.push_back(axis);
      }
    }
  }
  return members(spec, own, vary);
}

std::vector<int> Plan::holders(const ParamSpec& spec) const {
  const std::vector<AxisId> own = axes_of(spec);
  std::vector<AxisId> vary;
  for (AxisId axis = 0; axis < axis_count(mesh_); ++axis) {
    if (!has(own, axis) && !is_carved(mesh_, axis)) {
      vary.push_back(axis);
    }
  }
  return members(spec, own, vary);
}

std::vector<int> Plan::members(const ParamSpec& spec, const std::vector<AxisId>& own,
                               const std::vector<AxisId>& vary) const {
  const int rank = mesh_.rank();
  std::vector<int> found;
  for (int other = 0; other < mesh_.world_size(); ++other) {
    bool in = true;
    for (AxisId axis = 0; axis < axis_count(mesh_) && in; ++axis) {
      const bool free = is_carved(mesh_, axis)
                            ? !has(own, axis)
                            : axis == layer_axis_ || has(vary, axis) || (spec.repeats && has(own, axis));
      in = free || mesh_.coordinate(axis, other) == mesh_.coordinate(axis, rank);
    }
    in = in && same_stages(spec, other, rank);
    if (in && (!spec.repeats || same_slice(spec, other, rank))) {
      found.push_back(other);
    }
  }
  return found;
}

bool Plan::place(Param& param) const {
  const ParamSpec& spec = param.spec;
  if (spec.expert.has_value()) {
    const Range range = part(Dim::expert, settings_.moe.experts, spec.region);
    if (*spec.expert < range.begin || *spec.expert >= range.begin + range.count) {
      return false;
    }
  }
  for (int i = 0; i < 2; ++i) {
    const Range range = share(spec, i, mesh_.rank());
    param.offset[i] = range.begin;
    param.size[i] = range.count;
  }
  return spec.layers.empty() ||
         std::any_of(spec.layers.begin(), spec.layers.end(), [&](int layer) { return holds_layer(layer); });
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
  const std::vector<double> cost = layer_costs(settings_);
  const int layers = static_cast<int>(cost.size());
  cut_ = schedule_->cut(cost, stages_);
  const std::size_t pieces = cut_.empty() ? 0 : cut_.size() - 1;
  require(pieces > 0 && pieces % static_cast<std::size_t>(stages_) == 0 && cut_.front() == 0 && cut_.back() == layers &&
              std::adjacent_find(cut_.begin(), cut_.end(), std::greater_equal<int>()) == cut_.end(),
          "the schedule cuts {} layers for {} stages at [{}]: expected a multiple of {} pieces, none of them empty",
          layers, stages_, fmt::join(cut_, ", "), stages_);
}

std::string Plan::to_string() const {
  std::string text = fmt::format("world size {}\n", mesh_.world_size());
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh_.axes().size()); ++axis) {
    const AxisSpec& spec = mesh_.axes()[static_cast<std::size_t>(axis)];
    std::string splits;
    for (Dim dim : spec.splits) {
      splits += std::string(splits.empty() ? "" : ", ") + name_of(dim);
    }
    for (const RegionDim& also : spec.splits_in) {
      splits += fmt::format("{}{} in {}", splits.empty() ? "" : ", ", name_of(also.dim), name_of(also.region));
    }
    for (const RegionDim& not_there : spec.joins_in) {
      splits += fmt::format(", not {} in {}", name_of(not_there.dim), name_of(not_there.region));
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
