#include "core/layout.h"

#include "core/batch_share.h"
#include "core/parameters.h"

namespace orthant {

std::vector<KeySpec> keys_of_plugin(const PluginRequest& request) {
  return plugin_keys(request.name, request.path);
}

namespace {

// Runs a phase of one plugin; what it refuses is reported at its table.
template <class Phase>
void run_phase(const Config& config, const PluginRequest& request, Phase phase) {
  try {
    phase();
  } catch (const ConfigError& refused) {
    Diagnostics diagnostics = config.diagnostics();
    diagnostics.add(request.origin, refused.what(), "");
    diagnostics.throw_if_any();
  }
}

}  // namespace

Layout::Layout(const Config& config) : config_(config) {
  for (const PluginRequest& request : config.plugins) {
    run_phase(config, request, [&] {
      plugins_.push_back(create_plugin(load_plugin(request.name, request.path)));
      plugins_.back()->claim(mesh_, request.table);
    });
  }
  mesh_.freeze();
}

void Layout::plan(int rank, Communicator* communicator, Device* device) {
  mesh_.place(rank, communicator);
  plan_ = std::make_unique<Plan>(config_.settings, mesh_, device);
  for (std::size_t i = 0; i < plugins_.size(); ++i) {
    plan_->set_current_plugin(config_.plugins[i].name);
    run_phase(config_, config_.plugins[i], [&] { plugins_[i]->plan(*plan_, mesh_); });
  }
  plan_->freeze();
}

int check_layout(const Config& config) {
  Layout layout(config);
  layout.plan(0, nullptr, nullptr);
  batch_share(layout.plan());
  ParamStore store(layout.plan());
  return layout.world_size();
}

}  // namespace orthant
