// The chain of a model as data: what its kind says (orthant/model.h), checked and completed. Whoever wants to know what
// lies where asks here; nobody counts layers.
#pragma once

#include <orthant/model.h>
#include <orthant/settings.h>

#include <ranges>
#include <string>
#include <vector>

namespace orthant {

// What model.kind names. Errors: ConfigError listing the kinds that there are.
const ModelKind& model_kind(const Settings& settings);
// Of that kind. Errors: as model_kind; SettingError for model.kind where they are none.
std::vector<Space> spaces_of(const Settings& settings);
// With the adapters of [lora], rates, and what is frozen. Deterministic: the same on every rank. Errors: ConfigError;
// SettingError for model.kind, where a plugin's kind refuses the settings or makes no chain.
std::vector<Link> links_of(const Settings& settings);

// Errors: Error if there is none of that name.
const Link& find(const std::vector<Link>& links, const std::string& name);
const Link& head_of(const std::vector<Link>& links);  // the first that something is learned from
int blocks_in(const std::vector<Link>& links);
std::vector<const Link*> routed_links(const std::vector<Link>& links);
int routed_in(const std::vector<Link>& links);
int routed_before(const std::vector<Link>& links, int number);  // routed links in front of it
std::string told(const Link& link);                             // as people read it: "the embedding", "layer 3"

double cost_of(const Link& link);  // for cutting the chain into stages, relative
// Floating-point operations that the model needs to train on one token: matrix products and attention, forward and, at
// twice that, backward (Chowdhery et al., "PaLM", appendix B; here a token attends to half a sequence on average).
double training_flops(const std::vector<Link>& links);

// The parameters of all links, in their order.
inline auto parameters_of(const std::vector<Link>& links) {
  return links | std::views::transform(&Link::parameters) | std::views::join;
}
std::vector<LayerSpecs> parameter_table(const Settings& settings);

// Whether something of the layer's router trains.
bool router_learns(const LayerSpecs& layer);

// What gates keep of a routed layer (Gate::keeps_state), f32 [E] each: its name in a checkpoint, and the layer. None
// where there is no such gate.
inline constexpr const char* gate_state_prefix = "gate/";
struct GateStateSpec {
  std::string name;  // "gate/model.layers.3.block_sparse_moe"
  int layer = 0;     // Link::number
  bool learns =
      true;  // false where all of the layer's router is frozen and has no adapter: it keeps what it began with
};
std::vector<GateStateSpec> gate_state_table(const Settings& settings);
std::vector<GateStateSpec> gate_state_table(const Settings& settings, const std::vector<Link>& links);

}  // namespace orthant
