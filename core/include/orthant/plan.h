// Plan: what the plugins of one experiment agreed on. Edited once by every plugin, then validated, frozen and
// printable. From it the core derives which slice of a weight a rank holds, which tokens its loader reads, who sums
// which gradient, and how the gradient norm is counted.
//
// Thread safety: one Plan per rank; not shared.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <orthant/mesh.h>
#include <orthant/seams.h>
#include <orthant/settings.h>

namespace orthant {

struct Range {
  std::int64_t begin = 0, count = 0;
};

class Plan {
 public:
  // `device` may be null in a dry run. Both outlive the plan.
  Plan(const Settings& settings, Mesh& mesh, Device* device);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();

  const Settings& settings() const { return settings_; }
  Mesh& mesh() const { return mesh_; }
  Device& device() const;  // Errors: Error in a dry run
  bool dry() const { return device_ == nullptr; }

  // --- phase 2: plugins bind seams. Errors: ConfigError naming both plugins where a seam is taken.
  void bind(Site site, std::unique_ptr<Boundary> boundary, Dim moves);  // two at one site must move different dims
  void bind(std::unique_ptr<TokenExchange> exchange);                   // at most one; likewise the next two
  void bind(std::unique_ptr<Schedule> schedule);
  void bind(std::unique_ptr<AttentionCore> core);
  void chain(std::unique_ptr<Keeper> keeper);
  void chain(std::unique_ptr<Stash> stash);            // at most one so far
  void split_in(Region region, Dim dim, AxisId axis);  // this axis splits `dim` in this region only
  void set_current_plugin(std::string name) { current_ = std::move(name); }
  void freeze();  // after the last plugin: fills the seams that nobody bound

  // --- derived, by rule
  // Axes that split `dim` in `region`, in mesh order.
  std::vector<AxisId> axes_of(Dim dim, Region region) const;
  // The caller's part of `n` units of `dim`. Errors: LayoutError where n does not divide.
  Range part(Dim dim, std::int64_t n, Region region) const { return part(dim, n, region, mesh_.rank()); }
  Range part(Dim dim, std::int64_t n, Region region, int rank) const;
  // Axes that split parameter `spec`.
  std::vector<AxisId> axes_of(const ParamSpec& spec) const;
  // World ranks over which the gradient of `spec` is summed (includes the caller).
  std::vector<int> sum_members(const ParamSpec& spec) const;
  // World ranks that hold the same slice of `spec` as the caller.
  std::vector<int> holders(const ParamSpec& spec) const;
  // Fills offset and size. Returns false where this rank holds nothing of it.
  bool place(Param& param) const;
  // A group over `members`, one per distinct (purpose, list), made on first use in the same order on every rank.
  Group& group(const std::string& purpose, const std::vector<int>& members);

  // --- the seams, as the step meets them
  Tensor cross(Site site, Tensor x, Stream& s) const;        // forward through the boundaries of a site
  Tensor cross_back(Site site, Tensor dy, Stream& s) const;  // their adjoints, in reverse order
  TokenExchange* exchange() const { return exchange_.get(); }
  const Schedule& schedule() const;
  AttentionCore& attention_core() const;
  const std::vector<std::unique_ptr<Keeper>>& keepers() const { return keepers_; }
  Stash& stash() const;

  // Who did what, for people: axes, groups, seams.
  std::string to_string() const;

 private:
  struct BoundEntry;
  struct RegionSplit {
    Region region;
    Dim dim;
    AxisId axis;
  };
  const Settings& settings_;
  Mesh& mesh_;
  Device* device_;
  std::string current_;
  std::vector<BoundEntry> boundaries_;
  std::vector<RegionSplit> region_splits_;
  std::vector<std::pair<std::string, Group*>> groups_;
  std::unique_ptr<TokenExchange> exchange_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<AttentionCore> core_;
  std::vector<std::unique_ptr<Keeper>> keepers_;
  std::vector<std::unique_ptr<Stash>> stashes_;
  std::vector<std::string> bound_by_;  // lines for to_string
};

}  // namespace orthant
