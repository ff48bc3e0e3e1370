// Mesh: the axes of parallelism and the ranks along them.
//
// Axes are claimed in the order of the configuration's [plugins.*] tables, outermost first. A rank is the row-major
// index of its coordinates. A *carved* axis (the field says folded) adds no ranks. It re-factors the ranks that split
// the dims it names, and consecutive ones differ along it. Example: expert ranks are carved from the ranks that split
// tokens in the region of the experts. With data = 4 and expert = 2, ranks 0 and 1 hold different experts, and 0 and 2
// the same.
//
// Thread safety: one Mesh per rank; not shared.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/error.h>
#include <orthant/group.h>

namespace orthant {

// What the model is made of. An axis may split these.
enum class Dim { batch, position, head, ffn, vocab, expert, layer };
const char* name_of(Dim dim);

// The part of a model in which an activation or a parameter is used. `norm` is the residual stream: norms, dropout of
// branches, learned positions.
enum class Region { embedding, norm, attention, attention_core, ffn, router, experts, head };
const char* name_of(Region region);

struct RegionDim {
  Region region;
  Dim dim;
  bool operator==(const RegionDim&) const = default;
};

// One axis of parallelism. There are two ways to split tokens by position. With `position` in `splits`, each rank holds
// a slice of every sequence (Plan::positions). With `position` in `splits_in`, the ranks hold rows [T, d] in common
// elsewhere, and cut them into equal runs in those regions (Plan::rows).
struct AxisSpec {
  std::string name;
  int size = 1;
  std::vector<Dim> splits = {};           // dims that are divided among the ranks of this axis in all regions ...
  std::vector<RegionDim> joins_in = {};   // ... but these
  std::vector<RegionDim> splits_in = {};  // dims that are divided in these regions only
  std::vector<RegionDim> carve_of = {};   // empty: the axis multiplies the world size
  // How `position` is divided. True: rank r holds parts r and 2 size - 1 - r of 2 size equal parts, and causal
  // attention costs every rank the same. False: part r of size.
  bool zigzag = false;
  // Ranks that differ along this axis are of different *workers*, which train a model each: they split the batch, and
  // nothing is summed along the axis. Scales, token counts, norms, clipping and sharding are the worker's own; a
  // checkpoint holds every worker's weights and state. What workers tell each other is a plugin's business (Local SGD).
  // REQUIRES: splits is {batch}, with no other dims.
  bool independent = false;
};

using AxisId = int;

// An axis whose size does not fit the rest of the layout.
class LayoutError : public ConfigError {
 public:
  // `dim`: the one whose units do not divide among the axis's ranks; nothing if the axis does not fit other axes.
  LayoutError(std::string message, std::string axis, std::optional<Dim> dim)
      : ConfigError(std::move(message)), axis_(std::move(axis)), dim_(dim) {}
  const std::string& axis() const { return axis_; }
  std::optional<Dim> dim() const { return dim_; }

 private:
  std::string axis_;
  std::optional<Dim> dim_;
};

// Whether layers run, and on which stream.
struct RunningLayers {
  const Stream* main = nullptr;
};

class Mesh {
 public:
  Mesh() = default;
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Phase 1. Errors: ConfigError for a size below 1, a name claimed twice, an independent axis that splits more than
  // the batch.
  AxisId claim(AxisSpec spec);

  // Ends phase 1: checks the carved axes, fixes the world size. Errors: LayoutError.
  void freeze();
  int world_size() const { return world_; }

  // Says which rank the caller is. Without a communicator (a dry run: planning, printing) groups know their members,
  // and every collective throws. REQUIRES: frozen; communicator's size is world_size().
  void place(int rank, Communicator* communicator);
  int rank() const { return rank_; }

  const std::vector<AxisSpec>& axes() const { return axes_; }
  int coordinate(AxisId axis) const { return coordinate(axis, rank_); }
  int coordinate(AxisId axis, int rank) const;
  bool splits(AxisId axis, Dim dim, Region region) const;

  // A group of the ranks that differ from the caller only along `axes`: plain axes, or one carved axis alone. Every
  // call makes a new Group with its own order of collectives. Every rank must make the same calls. The mesh owns the
  // group.
  Group& group(std::span<const AxisId> axes);
  Group& group(AxisId axis) { return group(std::span<const AxisId>(&axis, 1)); }
  Group& world_group(const std::string& name);

  // --- workers: the ranks that train one model together. One worker, of all ranks, without independent axes.
  int workers() const;
  int worker() const { return worker(rank_); }
  int worker(int rank) const;  // row-major along the independent axes
  std::vector<int> worker_members() const;
  Group& worker_group(const std::string& name) { return group_of(name, worker_members()); }

  // The members that group(axes) would have, for any rank.
  std::vector<int> members(std::span<const AxisId> axes, int rank) const;
  // The ranks that may differ from `rank` along the plain axes of `vary` and along no other plain axis, and that agree
  // with it along the carved axes of `keep`.
  std::vector<int> members_keeping(std::span<const AxisId> vary, std::span<const AxisId> keep, int rank) const;
  // A group of these world ranks, in this order, which must include the caller. Collective over the world: every rank
  // calls it with the list that it belongs to, and the lists partition the world. The mesh owns the group.
  Group& group_of(const std::string& name, const std::vector<int>& members);

  // The core says that layers run, with `main` as the main stream, and that they have ended (null). Meanwhile ranks on
  // different stages are at different places of the step. A collective of a group that spans stages (sends and receives
  // aside) then throws Error on the main stream, instead of waiting forever.
  void layers_run(const Stream* main) { running_->main = main; }

 private:
  bool carved(AxisId axis) const { return !axes_[axis].carve_of.empty(); }
  std::vector<AxisId> find_carved_axes(AxisId axis) const;  // the plain axes that a carved one re-factors
  std::vector<AxisId> independent_axes() const;
  bool spans_stages(const std::vector<int>& members) const;
  int linear(std::span<const AxisId> axes, int rank) const;

  std::vector<AxisSpec> axes_;
  // From freeze on. Of each axis the plain ones that it re-factors, none for a plain one; and of a plain one how far
  // apart two ranks are that follow one another along it.
  std::vector<std::vector<AxisId>> carved_axes_;
  std::vector<int> stride_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<RunningLayers> running_ = std::make_unique<RunningLayers>();  // groups point to it
  Communicator* communicator_ = nullptr;
  int world_ = 1;
  int rank_ = 0;
  bool frozen_ = false;
};

}  // namespace orthant
