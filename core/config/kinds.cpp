#include "core/config/kinds.h"

#include <orthant/gate.h>
#include <orthant/source.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/config/suggest.h"

namespace orthant {

void set_entry(Config& config, const std::string& title, const std::string& key, Value value,
               const std::string& origin) {
  for (Table& table : config.tables) {
    if (table.path() == title) {
      std::map<std::string, Table::Entry> entries = table.entries();
      Table::Entry& entry = entries.at(key);
      entry.value = std::move(value);
      entry.origin = origin.empty() ? entry.origin : origin;
      table = Table(title, std::move(entries));
    }
  }
}

void check_kinds(const Config& config, const std::vector<CoreKey>& keys, std::set<std::string>& broken,
                 Diagnostics& diagnostics) {
  for (const CoreKey& key : keys) {
    if (key.noun.empty()) {
      continue;
    }
    const std::string path = key.table + "." + key.spec.name;
    const Table& table = config.table(key.table);
    const std::string& name = table.text(key.spec.name);
    if (name.empty() && std::get<std::string>(key.spec.default_value).empty()) {
      continue;  // implied
    }
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
  set_entry(config, "moe", "top_k", moe.top_k);
}

void imply_chat(Config& config) {
  DataSettings& data = config.settings.data;
  if (data.source != "chat" && data.source != "pairs") {
    return;
  }
  if (config.origin("data.documents") == "default") {
    data.documents = Documents::packed;
    set_entry(config, "data", "documents", std::string("packed"));
  }
  if (data.tokenizer == "bytes" && config.origin("data.chat_template") == "default") {
    data.chat_template = "plain";
    set_entry(config, "data", "chat_template", std::string("plain"));
  }
}

void imply_validation(Config& config) {
  DataSettings& data = config.settings.data;
  if (!data.validation_path.empty() && config.origin("data.validation_fraction") == "default") {
    data.validation_fraction = 0;
    set_entry(config, "data", "validation_fraction", 0.0);
  }
}

void imply_vocabulary(Config& config, std::set<std::string>& broken, Diagnostics& diagnostics) {
  Settings& settings = config.settings;
  // A plugin that was not asked may bring the source.
  const bool sound = broken.count("model.vocab_size") == 0 && broken.count("data.path") == 0 &&
                     broken.count("data.tokenizer") == 0 && broken.count("data.source") == 0;
  if (settings.model.vocab_size != 0 || !sound || !settings.catalogue->has<Source>(settings.data.source)) {
    return;
  }
  std::string setting = "model.vocab_size";
  std::string problem =
      fmt::format("[model] vocab_size: 0 leaves it to the data, and source \"{}\" does not say", settings.data.source);
  try {
    if (const auto vocabulary = settings.catalogue->get<Source>(settings.data.source).vocabulary(settings)) {
      settings.model.vocab_size = *vocabulary;
      return set_entry(config, "model", "vocab_size", *vocabulary);
    }
  } catch (const SettingError& error) {
    setting = error.setting();
    problem = error.what();
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  broken.insert("model.vocab_size");
  diagnostics.add(config.nearest_origin(setting), problem,
                  setting == "model.vocab_size" ? "write the number of tokens" : "change " + setting);
}

}  // namespace orthant
