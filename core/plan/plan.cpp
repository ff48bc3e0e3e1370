#include <orthant/plan.h>

#include <algorithm>
#include <functional>

#include "core/arch/links.h"
#include "core/plan/default_seams.h"
#include "core/plan/keeper_chain.h"
#include "core/plan/named_seams.h"

namespace orthant {

struct Plan::BoundEntry {
  Site site;
  Dim moves;
  std::unique_ptr<Boundary> boundary;
  std::string by;
};

Plan::Plan(const Settings& settings, Mesh& mesh, Device* device)
    : settings_(settings),
      mesh_(mesh),
      device_(device),
      keepers_(std::make_unique<KeeperChain>()),
      spaces_(spaces_of(settings)) {
  const std::vector<AxisSpec>& axes = mesh.axes();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const AxisSpec& spec = axes[i];
    if (std::find(spec.splits.begin(), spec.splits.end(), Dim::layer) == spec.splits.end()) {
      continue;
    }
    if (layer_axis_.has_value()) {
      throw ConfigError(
          fmt::format("axes '{}' and '{}' both split the layers: at most one can", axes[*layer_axis_].name, spec.name));
    }
    layer_axis_ = static_cast<AxisId>(i);
    stages_ = spec.size;
  }
}
Plan::~Plan() = default;

Device& Plan::device() const {
  require(device_ != nullptr, "a dry run has no device");
  return *device_;
}

const SharedLinks& Plan::shared_links() const {
  if (links_ == nullptr) {
    links_ = std::make_shared<const std::vector<Link>>(links_of(settings_));
  }
  return links_;
}

int Plan::layers() const {
  return static_cast<int>(links().size());
}

namespace {

void require_seam(bool given, const char* what, const std::string& by) {
  if (!given) {
    throw ConfigError(fmt::format("plugin '{}' gives a null {}", by, what));
  }
}

template <class Seam>
void bind_once(std::unique_ptr<Seam>& place, std::unique_ptr<Seam> seam, const char* what, const std::string& by,
               std::vector<std::string>& log) {
  require_seam(seam != nullptr, what, by);
  if (place != nullptr) {
    const auto earlier = std::find_if(
        log.begin(), log.end(), [&](const std::string& line) { return line.ends_with(fmt::format(": {}", what)); });
    throw ConfigError(fmt::format("plugin '{}' binds a second {}: at most one is possible, and '{}' has bound one", by,
                                  what, earlier->substr(0, earlier->find(':'))));
  }
  place = named(std::move(seam), by);
  log.push_back(fmt::format("{}: {}", by, what));
}

}  // namespace

void Plan::bind(Site site, std::unique_ptr<Boundary> boundary, Dim moves) {
  require_seam(boundary != nullptr, "boundary", current_);
  const auto crossed = [&](const SiteInfo& info) { return info.site == site; };
  if (std::none_of(sites().begin(), sites().end(), crossed)) {
    throw ConfigError(
        fmt::format("plugin '{}' binds a boundary {}, where nothing crosses in any model: orthant/seams.h, "
                    "sites(), lists where something does",
                    current_, name_of(site)));
  }
  for (const BoundEntry& other : boundaries_) {
    if (other.site == site && other.moves == moves) {
      throw ConfigError(fmt::format("plugins '{}' and '{}' both move dim {} at the same site ({})", other.by, current_,
                                    name_of(moves), name_of(site)));
    }
  }
  bound_by_.push_back(fmt::format("{}: boundary {} moves {}", current_, name_of(site), name_of(moves)));
  boundaries_.push_back({site, moves, named(std::move(boundary), current_), current_});
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
  require_seam(keeper != nullptr, "keeper", current_);
  keepers_->add(current_, std::move(keeper));
  bound_by_.push_back(current_ + ": keeper");
}
void Plan::chain(std::unique_ptr<Stash> stash) {
  require_seam(stash != nullptr, "stash", current_);
  stashes_.push_back(named(std::move(stash), current_));
  bound_by_.push_back(current_ + ": stash");
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

Tensor Boundary::forward_in(int, Tensor x, Stream& s) {
  return forward(std::move(x), s);
}
Tensor Boundary::backward_in(int, Tensor dy, Stream& s) {
  return backward(std::move(dy), s);
}

Tensor Plan::cross(Site site, Tensor x, Stream& s, int space) const {
  for (const BoundEntry& entry : boundaries_) {
    if (entry.site == site) {
      x = space == 0 ? entry.boundary->forward(std::move(x), s) : entry.boundary->forward_in(space, std::move(x), s);
    }
  }
  return x;
}

Tensor Plan::cross_back(Site site, Tensor dy, Stream& s, int space) const {
  for (auto entry = boundaries_.rbegin(); entry != boundaries_.rend(); ++entry) {
    if (entry->site == site) {
      dy = space == 0 ? entry->boundary->backward(std::move(dy), s)
                      : entry->boundary->backward_in(space, std::move(dy), s);
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
  keepers_->check_sums();
  if (settings_.optimizer.in_backward) {
    keepers_->check_in_backward();
  }
  if (settings_.optimizer.gradient_dtype == ComputeType::bf16) {
    keepers_->check_narrow_gradients();
  }
  if (schedule_ == nullptr) {
    schedule_ = make_single_stage_schedule();
  }
  if (core_ == nullptr) {
    core_ = make_local_attention();
  }
  stashes_.push_back(make_memory_stash());
  for (std::size_t i = 1; i < stashes_.size(); ++i) {
    stashes_[i - 1]->set_next(*stashes_[i]);
  }
  std::vector<double> cost;
  for (const Link& link : links()) {
    cost.push_back(cost_of(link));
  }
  cut_ = schedule_->cut(cost, stages_);
  const std::size_t pieces = cut_.empty() ? 0 : cut_.size() - 1;
  require(pieces > 0 && pieces % static_cast<std::size_t>(stages_) == 0 && cut_.front() == 0 &&
              cut_.back() == layers() &&
              std::adjacent_find(cut_.begin(), cut_.end(), std::greater_equal<int>()) == cut_.end(),
          "the schedule cuts {} layers for {} stages at [{}]: expected a multiple of {} pieces, none of them empty",
          layers(), stages_, fmt::join(cut_, ", "), stages_);
}

std::string Plan::to_string() const {
  std::string text = fmt::format("world size {}\n", mesh_.world_size());
  for (AxisId axis = 0; axis < static_cast<AxisId>(mesh_.axes().size()); ++axis) {
    const AxisSpec& spec = mesh_.axes()[axis];
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
    text += fmt::format("axis {:<10} size {:<3} splits {}{}{}\n", spec.name, spec.size, splits,
                        spec.carve_of.empty() ? "" : " (carved)", spec.independent ? " (independent workers)" : "");
    for (int rank = 0; rank < mesh_.world_size(); ++rank) {
      const std::vector<int> members = mesh_.members(std::span<const AxisId>(&axis, 1), rank);
      if (members.front() == rank) {
        text += fmt::format("  group [{}]\n", fmt::join(members, " "));
      }
    }
  }
  for (const std::string& line : bound_by_) {
    text += line + "\n";
  }
  return text;
}

}  // namespace orthant
