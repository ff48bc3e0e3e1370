// Families of published models that plugins bring beside their kinds of model (orthant/family.h).
#pragma once

#include <string>
#include <vector>

#include "apps/pretrained/family.h"

namespace orthant {

// Those of a kind of model, in the order in which a model that several can say is written: the core's own, or those of
// the catalogue.
std::vector<FamilyPtr> families_of(const std::string& kind, const Catalogue& catalogue);

// Null: there is none, neither of the core's nor in the catalogue.
FamilyPtr find_family(const std::string& model_type, const Catalogue& catalogue);

// Asks every plugin that is found on this machine and needs no key to be written. Null: none brings it. known: names
// of all families that were met are appended.
FamilyPtr find_family_of_plugins(const std::string& model_type, const PluginKeys& plugin_keys,
                                 const PluginKinds& plugin_kinds, std::vector<std::string>& known);

// The table that loads the plugin of model.kind, as keys of a new run: none for the core's own kind.
OurKeys plugin_table(const Config& config);

}  // namespace orthant
