// Plugin: an axis of parallelism, seams of a step, or named kinds, in a shared library of its own.
//
// A plugin implements Plugin and ends with ORTHANT_PLUGIN(name, Class). It includes only <orthant/...> headers, keeps
// no globals, and touches a step only through the seams it binds. See docs/guides/plugins.md.
//
// Lifetime: the loader opens the library once and never closes it. Each rank has one Plugin object, which is destroyed
// after the Plan that it edited. Exceptions of Plugin's methods reach the core as they are; none may leave `create`.
#pragma once

#include <memory>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/catalogue.h>
#include <orthant/mesh.h>
#include <orthant/module.h>
#include <orthant/plan.h>
#include <orthant/table.h>

namespace orthant {

// What a plugin does to the mathematics of the model.
//   unchanged: nothing. Any layout computes what one rank without the plugin computes.
//   changed:   something else, which does not depend on ranks: any layout computes what one rank with the plugin does.
//   of_ranks:  something that depends on which rank holds what, as workers that average now and then. No other layout
//              is comparable: checks compare such a plugin's layouts only with themselves.
enum class Mathematics { unchanged, changed, of_ranks };

// Another value for a key of a plugin's table.
struct KeyChange {
  std::string key;
  Value value;
};

class Plugin {
 public:
  virtual ~Plugin() = default;
  // The keys of [plugins.NAME] besides `path`. Called before the configuration is checked.
  virtual std::vector<KeySpec> keys() const = 0;
  // Adds its gates, optimizers, ... to the catalogue: the configuration can then name them. Called each time that a
  // configuration is loaded, when the table is checked, on an object of its own. Errors: ConfigError.
  virtual void add_to(Catalogue& /*catalogue*/, const Table& /*config*/) {}
  // Phase 1: how many ranks, which dims. Errors: ConfigError.
  virtual void claim(Mesh& mesh, const Table& config) = 0;
  // Asked after claim: it may depend on the table. `orthant verify` and `orthant plugins --check` choose by it what
  // they compare a layout with.
  virtual Mathematics mathematics() const { return Mathematics::unchanged; }
  // Asked after claim: other values of its own keys with which ranks hold less memory and compute the same, each a
  // change by itself, the cheapest of a key first. They are tried where a run could exceed memory.limit.
  virtual std::vector<KeyChange> smaller() const { return {}; }
  // Asked after claim, of a plugin that claims an axis or binds a seam. Ranks of one stage to which every plugin gives
  // equal numbers are alike: each of them allocates, sends and computes equally much in a step, as far as the plugins
  // decide. `orthant plan` and memory.limit walk through a step of some of them instead of all. By default every rank
  // is unlike any other.
  virtual std::int64_t likeness(const Mesh& /*mesh*/, int rank) const { return rank; }
  // Phase 2, after every plugin's claim: bind seams. Then the core owns the step. Must also work in a dry run.
  virtual void plan(Plan& plan, Mesh& mesh) = 0;
};

}  // namespace orthant

#define ORTHANT_PLUGIN(NAME, CLASS)                                 \
  ORTHANT_MODULE("plugin", NAME, nullptr, orthant::Plugin, nullptr, \
                 [](const void*) { return std::make_unique<CLASS>(); })
