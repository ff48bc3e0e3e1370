// Session: the plugins of one configuration as objects, with their mesh and plan, for one rank.
//
//   Session session(config);                   // phase 1: plugins claim axes; the world size is known
//   session.plan(rank, communicator, device);  // phase 2: plugins bind seams; collective over the world
//
// Thread safety: one per rank; not shared.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <orthant/plan.h>

#include "core/config/config.h"
#include "core/modules/module.h"

namespace orthant {

// The plugin_keys of load_config: opens the requested library and asks it.
std::vector<KeySpec> keys_of_plugin(const PluginRequest& request);
// The plugin_kinds of load_config.
void kinds_of_plugin(const PluginRequest& request, Catalogue& catalogue);

class Session {
 public:
  // `config` outlives the layout. Errors: ConfigError, pointing at the plugin's table where one refuses.
  explicit Session(const Config& config);

  int world_size() const { return mesh_.world_size(); }
  // Bound to the plan when it is made, before any plugin's.
  void bind(std::unique_ptr<AttentionCore> core) { core_ = std::move(core); }

  // For the plan, of the same model. Null: it makes its own.
  void share_links(SharedLinks links) { links_ = std::move(links); }

  // communicator and device null: a dry run. Errors: ConfigError for sizes that do not divide.
  void plan(int rank, Communicator* communicator, Device* device);
  // The same, but what is refused is added to `refused`; the plan can then be asked for parts, not be trained with.
  void plan(int rank, Communicator* communicator, Device* device, Diagnostics& refused);

  // Of each plugin, in the order of the tables.
  std::vector<Mathematics> mathematics() const;
  std::vector<std::vector<KeyChange>> smaller() const;  // Plugin::smaller
  // What the plugins that claim an axis or bind a seam say of a rank (Plugin::likeness). REQUIRES: plan was called.
  std::vector<std::int64_t> likeness(int rank) const;
  Mesh& mesh() { return mesh_; }
  Plan& plan() { return *plan_; }

 private:
  const Config& config_;
  std::vector<PluginPtr> plugins_;  // before plan_: plans hold objects of the plugins
  Mesh mesh_;
  std::vector<bool> decides_;            // of each plugin: it claims an axis or binds a seam
  std::unique_ptr<AttentionCore> core_;  // until the plan has it
  SharedLinks links_;
  std::unique_ptr<Plan> plan_;
};

// Plans one rank without starting any and checks its part, which stands for all (ranks are symmetric): sizes that do
// not divide are refused here, before anything starts, and so is a schedule whose stages would wait for each other for
// ever. Returns the world size. Errors: ConfigError; Error for the schedule.
int check_layout(const Config& config);

// What a user may not have meant, a sentence each: a table that loads a plugin of another name, an axis that divides
// nothing of this model. REQUIRES: a layout that check_layout accepts.
std::vector<std::string> layout_notes(const Config& config);

}  // namespace orthant
