#include "core/config/kinds.h"

#include <orthant/gate.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/config/suggest.h"

namespace orthant {

void check_kinds(const Config& config, const std::vector<CoreKey>& keys, std::set<std::string>& broken,
                 Diagnostics& diagnostics) {
  for (const CoreKey& key : keys) {
    if (key.noun.empty()) {
      continue;
    }
    const std::string path = key.table + "." + key.spec.name;
    const Table& table = config.table(key.table);
    const std::string& name = table.text(key.spec.name);
    const std::vector<std::string> known = config.settings.catalogue->names(key.noun);
    if (std::find(known.begin(), known.end(), name) != known.end()) {
      continue;
    }
    broken.insert(path);
    const auto near = nearest(name, known);
    diagnostics.add(table.origin(key.spec.name),
                    fmt::format("[{}] {}: there is no {} {}", key.table, key.spec.name, key.noun, in_quotes(name, '"')),
                    fmt::format("{}nown are \"{}\"; a plugin may add others",
                                near ? fmt::format("did you mean \"{}\"? K", *near) : std::string("k"),
                                fmt::join(known, "\", \"")));
  }
}

void imply_top_k(Config& config) {
  MoeSettings& moe = config.settings.moe;
  if (moe.top_k != 0) {
    return;
  }
  const Catalogue& catalogue = *config.settings.catalogue;
  moe.top_k = catalogue.has<Gate>(moe.router) ? catalogue.get<Gate>(moe.router).implied_top_k(moe) : 2;
  for (Table& table : config.tables) {
    if (table.path() == "moe") {
      std::map<std::string, Table::Entry> entries = table.entries();
      entries.at("top_k").value = moe.top_k;
      table = Table("moe", std::move(entries));
    }
  }
}

}  // namespace orthant
