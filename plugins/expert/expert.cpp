// The expert axis: each rank holds some of the experts of every routed layer; packed token rows travel to them and
// back by all-to-all with variable counts (Lepikhin et al., "GShard"). Carved from the ranks that split tokens.
#include <orthant/objective.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include <algorithm>

#include "exchange.h"

namespace {

using namespace orthant;

class Expert final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
    return {{.name = "size",
             .default_value = std::int64_t{1},
             .help = "Ranks that share the experts of a layer, carved from those that split tokens.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "dispatch",
             .default_value = std::string("all_to_all"),
             .help = "How rows travel to their experts: between all ranks at once, or first within a node and then "
                     "between nodes.",
             .choices = {"all_to_all", "hierarchical"}},
            {.name = "node_ranks",
             .default_value = std::int64_t{0},
             .help = "hierarchical: how many consecutive ranks of this axis share a node.",
             .minimum = 0,
             .maximum = 65536},
            {.name = "chunks",
             .default_value = std::int64_t{1},
             .help = "Parts in which the rows travel, by expert: one is on the way while another is computed.",
             .minimum = 1,
             .maximum = 65536},
            {.name = "padded",
             .default_value = false,
             .help = "Every expert gets the same number of rows from every rank, empty ones among them: no counts are "
                     "exchanged or waited for. Needs moe.capacity_factor."}};
  }

  void claim(Mesh& mesh, const Table& config) override {
    size_ = config.integer("size");
    node_ranks_ = config.integer("node_ranks");
    chunks_ = config.integer("chunks");
    padded_ = config.boolean("padded");
    hierarchical_ = config.text("dispatch") == "hierarchical";
    if (hierarchical_ && (node_ranks_ == 0 || size_ % node_ranks_ != 0)) {
      throw SettingError(
          "plugins.expert.node_ranks",
          fmt::format("node_ranks = {} does not divide the {} ranks of the axis: set it to the number of "
                      "them on one node",
                      node_ranks_, size_));
    }
    if (!hierarchical_ && node_ranks_ != 0) {
      throw SettingError("plugins.expert.node_ranks",
                         "node_ranks is for dispatch = \"hierarchical\": set that too, or remove node_ranks");
    }
    axis_ = mesh.claim({.name = "expert",
                        .size = static_cast<int>(size_),
                        .splits = {Dim::expert},
                        .carve_of = {{Region::experts, Dim::batch}, {Region::experts, Dim::position}}});
  }

  std::int64_t likeness(const Mesh&, int) const override { return 0; }
  void plan(Plan& plan, Mesh& mesh) override {
    const std::int64_t experts = plan.settings().moe.experts;
    if (experts == 0) {
      const ReferenceModel teacher = objective_of(plan.settings()).reference(plan.settings());
      if (!teacher.folder.empty() && !teacher.measures) {
        return;  // the axis is for the teacher, whose plan comes by itself
      }
    }
    if (experts == 0) {
      throw ConfigError("the model has no experts (moe.experts = 0): remove [plugins.expert] or set moe.experts");
    }
    if (padded_ && plan.settings().moe.capacity_factor <= 0) {
      throw SettingError(
          "plugins.expert.padded",
          "padded = true needs a capacity, and moe.capacity_factor = 0 is dropless: set it (1.25, say), or remove "
          "padded");
    }
    const std::int64_t local = plan.part(Dim::expert, experts, Region::experts).count;  // refuses what does not divide
    if (local % chunks_ != 0) {
      throw SettingError("plugins.expert.chunks",
                         fmt::format("the {} experts of a rank do not divide into chunks = {}", local, chunks_));
    }
    plan.bind(std::make_unique<expert::Exchange>(peers(mesh), static_cast<int>(chunks_), padded_));
  }

 private:
  expert::Peers peers(Mesh& mesh) const {
    if (!hierarchical_) {
      return {.all = &mesh.group(axis_)};
    }
    const std::vector<int> all = mesh.members(std::span<const AxisId>(&axis_, 1), mesh.rank());
    const std::size_t size = static_cast<std::size_t>(node_ranks_);
    const std::size_t own = static_cast<std::size_t>(std::find(all.begin(), all.end(), mesh.rank()) - all.begin());
    std::vector<int> node, across;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (r / size == own / size) {
        node.push_back(all[r]);
      }
      if (r % size == own % size) {
        across.push_back(all[r]);
      }
    }
    return {.node = &mesh.group_of("expert within a node", node), .across = &mesh.group_of("expert across", across)};
  }

  AxisId axis_ = 0;
  std::int64_t size_ = 1, node_ranks_ = 0, chunks_ = 1;
  bool hierarchical_ = false, padded_ = false;
};

}  // namespace

ORTHANT_PLUGIN("expert", Expert)
