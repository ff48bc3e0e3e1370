// Plan: what the plugins of one experiment agreed on. Every plugin edits it once. It is then validated, frozen and
// printable. The core derives from it which slice of a weight a rank holds, which tokens its loader reads, who sums
// which gradient, and how the gradient norm is counted.
//
// Thread safety: one Plan per rank; not shared.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/mesh.h>
#include <orthant/seams.h>

namespace orthant {

struct Settings;

struct Range {
  std::int64_t begin = 0, count = 0;
};

// Ranks that meet in collectives, as the caller's rank sees them: it is one of them.
struct GroupSpec {
  std::string purpose;  // for people, and to find it again: Plan::group
  std::vector<int> members;
};

// Tokens of a length of their own: those of an encoder beside those of a decoder. Every sequence has some of each
// space.
struct Space {
  std::string name;  // "tokens": what a source says that it gives (Source::spaces)
  std::int64_t positions = 0;
  bool both_ways = false;    // a token sees the whole document in attention, not only what lies before it
  std::int64_t columns = 0;  // numbers that each token brings beside its id, such as the pixels of a patch
};

class KeeperChain;
struct Link;  // orthant/model.h
using SharedLinks = std::shared_ptr<const std::vector<Link>>;

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
  // The chain of the whole model, and how many links it has. Made when it is first asked for. Plans of the same model,
  // for other ranks or batches, may share it.
  const std::vector<Link>& links() const { return *shared_links(); }
  int layers() const;
  const SharedLinks& shared_links() const;
  void share_links(SharedLinks links) { links_ = std::move(links); }
  const std::vector<Space>& spaces() const { return spaces_; }  // ModelKind::spaces

  // --- phase 2: plugins bind seams. Errors: ConfigError naming both plugins if a seam is taken.
  // `moves`: the dim that the boundary moves. Two at one site must move different dims; a forward pass crosses them in
  // the order of binding, a backward pass in reverse. A site that this model does not have is never crossed. Errors:
  // ConfigError for a site that is not among sites(): nothing crosses it in any model.
  void bind(Site site, std::unique_ptr<Boundary> boundary, Dim moves);
  void bind(std::unique_ptr<TokenExchange> exchange);  // at most one; likewise the next two
  void bind(std::unique_ptr<Schedule> schedule);
  void bind(std::unique_ptr<AttentionCore> core);
  // Keepers are called in the order in which they were chained. Errors, at freeze: ConfigError for one that must sum
  // (Sums::all) behind one that sums.
  void chain(std::unique_ptr<Keeper> keeper);
  void chain(std::unique_ptr<Stash> stash);
  void set_current_plugin(std::string name) { current_ = std::move(name); }
  // After the last plugin: fills the seams that nobody bound, and cuts the layers. Errors: ConfigError.
  void freeze();

  // --- derived, by rule
  // Axes that split `dim` in `region`: independent ones (AxisSpec) first, then in mesh order.
  std::vector<AxisId> axes_of(Dim dim, Region region) const;
  // The caller's part of `n` units of `dim`. Errors: LayoutError if n does not divide.
  Range part(Dim dim, std::int64_t n, Region region) const { return part(dim, n, region, mesh_.rank()); }
  Range part(Dim dim, std::int64_t n, Region region, int rank) const;
  // The positions of each sequence, in a token space, that `rank` holds in `region`, as runs in the order of its rows.
  // Errors: LayoutError.
  std::vector<Range> positions(Region region, int rank, int space = 0) const;
  std::int64_t held_positions(Region region, int rank, int space = 0) const;  // how many they are
  // Which of its `tokens` rows `rank` holds in `region`: all, or one of equal runs if an axis cuts rows there
  // (AxisSpec::splits_in). `tokens` counts the rows of a region where no axis does. Errors: LayoutError if they do not
  // divide.
  Range rows(Region region, std::int64_t tokens, int rank) const;
  Range rows(Region region, std::int64_t tokens) const { return rows(region, tokens, mesh_.rank()); }
  // The axes that split parameter `spec`, without the axis that splits layers.
  std::vector<AxisId> axes_of(const ParamSpec& spec) const;
  // World ranks over which the gradient of `spec` is summed (includes the caller), all of the caller's worker.
  std::vector<int> sum_members(const ParamSpec& spec) const;
  // World ranks of the caller's worker that hold the same slice of `spec` as the caller.
  std::vector<int> holders(const ParamSpec& spec) const;
  // The two for another rank.
  std::vector<int> sum_members(const ParamSpec& spec, int rank) const;
  std::vector<int> holders(const ParamSpec& spec, int rank) const;
  // Fills offset and size. Returns false where this rank holds nothing of it.
  bool place(Param& param) const { return place(param, mesh_.rank()); }
  bool place(Param& param, int rank) const;  // the same for another rank
  // Whether the caller counts its tokens of `region` in sums over the ranks of its worker. It does if it is the lowest
  // rank of its stage that holds these tokens. jointly: the lowest that holds a part of the same sequences.
  bool counts_tokens(Region region, bool jointly) const;

  // --- stages: of the axis that splits layers, else one
  int stages() const { return stages_; }
  int stage() const { return stage_of_rank(mesh_.rank()); }
  int stage_of_rank(int rank) const;
  int stage_of_layer(int layer) const;
  std::vector<int> stage_members() const;  // the ranks of the caller's stage and worker, in order
  bool holds_layer(int layer) const { return stage_of_layer(layer) == stage(); }
  const std::vector<int>& cut() const { return cut_; }  // Schedule::cut of this model
  // Layers [first, second) of a chunk of the caller's stage.
  std::pair<int, int> layers_of_chunk(int chunk) const;
  // The group of `members` for `purpose`. It is made on first use, in the same order on every rank, and once for each
  // pair of purpose and list.
  Group& group(const std::string& purpose, const std::vector<int>& members);
  Group& group(const GroupSpec& spec) { return group(spec.purpose, spec.members); }

  // --- the seams, as the step meets them
  // Forward through the boundaries of a site, rows of a token space; and their adjoints, in reverse order.
  Tensor cross(Site site, Tensor x, Stream& s, int space = 0) const;
  Tensor cross_back(Site site, Tensor dy, Stream& s, int space = 0) const;
  TokenExchange* exchange() const { return exchange_.get(); }
  const Schedule& schedule() const;
  AttentionCore& attention_core() const;
  KeeperChain& keepers() const { return *keepers_; }  // core/plan/keeper_chain.h: all of them as one
  Stash& stash() const;                               // the first of the chain
  bool has_stashes_of_plugins() const { return stashes_.size() > 1; }

  // How often a plugin has bound a seam so far.
  std::size_t bound() const { return bound_by_.size(); }
  // Who did what, for people: axes, groups, seams.
  std::string to_string() const;

 private:
  struct BoundEntry;
  // With which unit of `units` a rank's slice begins, and how many units it has, by ParamSpec::repeats.
  Range share(const ParamSpec& spec, int dimension, int rank) const;
  bool same_slice(const ParamSpec& spec, int a, int b) const;
  std::vector<int> stages_of(const ParamSpec& spec) const;  // that have its layers
  // The ranks that agree with the caller along every plain axis but those of `vary`, hold the same slice, and are on
  // stages that have the parameter in common. `own`: the axes that split the parameter. The caller: `rank`.
  std::vector<int> members(const ParamSpec& spec, const std::vector<AxisId>& own, const std::vector<AxisId>& vary,
                           int rank) const;

  const Settings& settings_;
  Mesh& mesh_;
  Device* device_;
  std::string current_;
  std::vector<BoundEntry> boundaries_;
  std::vector<std::pair<std::string, Group*>> groups_;
  std::unique_ptr<TokenExchange> exchange_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<AttentionCore> core_;
  std::unique_ptr<KeeperChain> keepers_;
  std::vector<std::unique_ptr<Stash>> stashes_;
  mutable SharedLinks links_;
  std::vector<Space> spaces_;
  std::vector<std::string> bound_by_;  // lines for to_string
  std::optional<AxisId> layer_axis_;
  int stages_ = 1;
  std::vector<int> cut_;
};

}  // namespace orthant
