// Mesh: the axes of parallelism and the ranks along them.
//
// Axes are claimed in the order of the configuration's [plugins.*] tables, outermost first; a rank is the
// row-major index of its coordinates. An axis that is *carved* adds no ranks: it re-factors the ranks that split
// the dims it names, so that consecutive ones differ along it (with data = 4 and expert = 2, ranks 0 and 1 hold
// different experts, and 0 and 2 the same). Example: expert ranks are carved from those that split tokens in the
// region of the experts, whatever splits tokens elsewhere.
//
// Thread safety: one Mesh per rank; not shared.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <orthant/error.h>
#include <orthant/group.h>

namespace orthant {

// What the model is made of, and an axis may split.
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

// One axis of parallelism. Two ways to split tokens by position: an axis with `position` in `splits` holds a slice of
// every sequence (Plan::positions); one with it in `splits_in` cuts, in those regions, the rows [T, d] that its ranks
// hold in common elsewhere into equal runs (Plan::rows).
struct AxisSpec {
  std::string name;
  int size = 1;
  std::vector<Dim> splits = {};           // dims of the model divided among the ranks of this axis, in all regions ...
  std::vector<RegionDim> joins_in = {};   // ... but these
  std::vector<RegionDim> splits_in = {};  // and divided in these regions only
  std::vector<RegionDim> carve_of = {};   // empty: the axis multiplies the world size
  // Of `position`: rank r holds parts r and 2 size - 1 - r of 2 size equal parts, so that causal attention costs every
  // rank the same. False: part r of size.
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
  // `dim`: the one whose units do not divide among the axis's ranks; nothing where the axis does not fit other axes.
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

  // Places the caller. Without a communicator (a dry run: planning, printing) groups know their members but every
  // collective throws. REQUIRES: frozen; communicator's size is world_size().
  void place(int rank, Communicator* communicator);
  int rank() const { return rank_; }

  const std::vector<AxisSpec>& axes() const { return axes_; }
  int coordinate(AxisId axis) const { return coordinate(axis, rank_); }
  int coordinate(AxisId axis, int rank) const;
  bool splits(AxisId axis, Dim dim, Region region) const;

  // The ranks that differ from the caller only along `axes`: all of them plain, or one carved axis alone.
  // Every call makes a new Group with its own order of collectives; every rank must make the same calls.
  // The mesh owns the group.
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
  // Ranks that agree with `rank` along every axis but the plain axes of `vary`, and along the carved axes of `keep`.
  std::vector<int> members_keeping(std::span<const AxisId> vary, std::span<const AxisId> keep, int rank) const;
  Group& group_of(const std::string& name, const std::vector<int>& members);

  // The core says that layers run, with `main` as the main stream, and that they have ended (null). Meanwhile ranks on
  // different stages are at different places of the step: a collective of a group that spans stages (sends and receives
  // aside) on the main stream throws Error instead of waiting for ever.
  void layers_run(const Stream* main) { running_->main = main; }

 private:
  bool carved(AxisId axis) const { return !axes_[static_cast<std::size_t>(axis)].carve_of.empty(); }
  std::vector<AxisId> carved_axes(AxisId axis) const;  // the plain axes that a carved one re-factors
  std::vector<AxisId> independent_axes() const;
  bool spans_stages(const std::vector<int>& members) const;
  int linear(std::span<const AxisId> axes, int rank) const;

  std::vector<AxisSpec> axes_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unique_ptr<RunningLayers> running_ = std::make_unique<RunningLayers>();  // groups point to it
  Communicator* communicator_ = nullptr;
  int world_ = 1;
  int rank_ = 0;
  bool frozen_ = false;
};

}  // namespace orthant
