// The keys of plugins that exist only in these tests.
#pragma once

#include <orthant/table.h>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

inline std::vector<KeySpec> fake_plugin_keys(const PluginRequest& plugin) {
  KeySpec size{"size", std::int64_t{1}, "Ranks of the axis."};
  size.minimum = 1;
  if (plugin.name == "data") {
    KeySpec zero{"zero", std::int64_t{0}, "ZeRO stage."};
    zero.minimum = 0;
    zero.maximum = 3;
    return {size, zero};
  }
  if (plugin.name == "expert") {
    KeySpec dispatch{"dispatch", std::string("all_to_all"), "How tokens reach their experts."};
    dispatch.choices = {"all_to_all", "all_gather"};
    return {size, dispatch};
  }
  if (plugin.name == "needy") {
    KeySpec model{"model", std::string(), "What it needs."};
    model.required = true;
    KeySpec sizes{"sizes", std::vector<std::int64_t>{2}, "Some sizes."};
    sizes.minimum = 2;
    return {model, sizes, {"scale", 1.0, "A number."}, {"on", false, "A switch."}};
  }
  throw Error("no plugin '" + plugin.name + "' can be loaded. Tried:\n  /nowhere/" + plugin.name +
              ".so: no such file\nGive its file");
}

}  // namespace orthant
