#include "core/config/config.h"

namespace orthant {

const Table& Config::table(const std::string& title) const {
  for (const Table& table : tables) {
    if (table.path() == title) {
      return table;
    }
  }
  for (const PluginRequest& plugin : plugins) {
    if (plugin.table.path() == title) {
      return plugin.table;
    }
  }
  fail("the configuration has no table [{}]", title);
}

const std::string& Config::origin(const std::string& path) const {
  const std::size_t dot = path.rfind('.');
  require(dot != std::string::npos, "a configuration key is written table.key, found '{}'", path);
  return table(path.substr(0, dot)).origin(path.substr(dot + 1));
}

const std::string& Config::nearest_origin(const std::string& path) const {
  const std::string& own = origin(path);
  if (own == "default") {
    for (const auto& [key, entry] : table(path.substr(0, path.rfind('.'))).entries()) {
      if (entry.origin != "default") {
        return entry.origin;
      }
    }
  }
  return own;
}

}  // namespace orthant
