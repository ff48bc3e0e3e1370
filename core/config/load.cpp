// load_config: read the layers, find the plugins, check every written value, complete with defaults, validate.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/config/check.h"
#include "core/config/config.h"
#include "core/config/kinds.h"
#include "core/config/read_files.h"
#include "core/config/registry.h"
#include "core/config/sections.h"
#include "core/config/suggest.h"
#include "core/config/validate.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

bool plugin_name_ok(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

// Of a plugin's table, in which every key can be written without quotes, and `path` is the core's.
bool key_name_ok(const std::string& name) {
  return plugin_name_ok(name) && name != "path";
}

class Loader {
 public:
  Loader(const PluginKeys& plugin_keys, const PluginKinds& plugin_kinds, const FurtherCheck& layout_check)
      : plugin_keys_(plugin_keys),
        plugin_kinds_(plugin_kinds),
        layout_check_(layout_check),
        sources_(std::make_shared<Sources>()),
        diagnostics_(sources_) {
    take_keys(core_keys());
  }

  Config load(const std::string& file, const std::vector<std::string>& overrides) {
    const std::vector<SettingsLayer> layers = read_layers(file, overrides, *sources_, diagnostics_);
    for (const SettingsLayer& layer : layers) {
      find_plugins(layer);
    }
    for (Section& plugin : plugins_) {
      ask_keys(plugin);
    }
    // The plugins' tables first: the kinds that they add bring keys of the other tables.
    for (const SettingsLayer& layer : layers) {
      check_plugins(layer);
    }
    Config config;
    config.file = file;
    config.sources = sources_;
    for (Section& section : plugins_) {
      config.plugins.push_back(request_of(section));
      config.plugins.back().table = Table(section.title, completed(section));
    }
    fill_catalogue(config);
    for (const SettingsLayer& layer : layers) {
      check_layer(layer);
    }
    config.element_origins = element_origins_;
    complete(config);
    // A plugin that was not asked may bring the name.
    if (std::none_of(plugins_.begin(), plugins_.end(), [](const Section& s) { return s.unknown || !s.asked; })) {
      check_kinds(config, keys_, broken_, diagnostics_);
    }
    imply_top_k(config);
    imply_chat(config);
    imply_validation(config);
    imply_vocabulary(config, broken_, diagnostics_);
    // Without any file read, what is missing from it is no news.
    if (!layers.empty()) {
      validate(config, keys_, broken_, diagnostics_);
    }
    if (!diagnostics_.empty()) {
      check_layout(config);
    }
    diagnostics_.throw_if_any();
    return config;
  }

 private:
  void take_keys(std::vector<CoreKey> keys) {
    keys_ = std::move(keys);
    core_.clear();
    for (const CoreKey& key : keys_) {
      if (core_.empty() || core_.back().title != key.table) {
        core_.push_back({.title = key.table});
      }
      core_.back().keys.push_back(key.spec);
    }
  }

  static std::string plugin_of(const Section& section) { return section.title.substr(std::string("plugins.").size()); }

  Section* find(std::vector<Section>& sections, const std::string& title) {
    const auto it = std::find_if(sections.begin(), sections.end(), [&](const Section& s) { return s.title == title; });
    return it == sections.end() ? nullptr : &*it;
  }

  // So that what does not divide is reported with the rest.
  void check_layout(Config config) {
    broken_.erase("model.vocab_size");
    const bool asked =
        std::none_of(plugins_.begin(), plugins_.end(), [](const Section& s) { return s.unknown || !s.asked; });
    if (!layout_check_ || !asked || !broken_.empty()) {
      return;
    }
    if (config.settings.model.vocab_size == 0) {
      config.settings.model.vocab_size = 720720;  // not known: one that most numbers of ranks divide
    }
    try {
      layout_check_(config);
    } catch (const RefusedConfig& refused) {
      diagnostics_.add(refused.problems());
    } catch (const std::exception&) {  // may come of what was refused already
    }
  }

  // Notes the plugins in order, and their `path`, which says where to ask for the keys.
  void find_plugins(const SettingsLayer& layer) {
    for (const Member& top : layer.root.members) {
      if (top.key != "plugins") {
        continue;
      }
      if (top.value.kind != Node::Kind::table) {
        diagnostics_.add(top.value.origin, fmt::format("plugins: expected tables, found {}", kind_name(top.value)),
                         "write [plugins.NAME]");
        continue;
      }
      for (const Member& plugin : top.value.members) {
        find_plugin(plugin, layer);
      }
    }
  }

  void find_plugin(const Member& plugin, const SettingsLayer& layer) {
    if (plugin.value.kind != Node::Kind::table) {
      diagnostics_.add(
          plugin.origin,
          fmt::format("[plugins] {}: expected a table, found {}", in_quotes(plugin.key), kind_name(plugin.value)),
          "write [plugins.NAME], once per plugin");
      return;
    }
    if (!plugin_name_ok(plugin.key)) {
      diagnostics_.add(plugin.origin, fmt::format("{} cannot be the name of a plugin", in_quotes(plugin.key)),
                       "write letters, digits, '-' and '_'");
      return;
    }
    const std::string title = "plugins." + plugin.key;
    Section* section = find(plugins_, title);
    if (section == nullptr) {
      if (plugins_.size() >= most_plugins) {
        diagnostics_.add(plugin.origin, fmt::format("more than {} plugins", most_plugins), "load fewer plugins");
        return;
      }
      plugins_.push_back({.title = title, .origin = plugin.origin});
      section = &plugins_.back();
    }
    KeySpec path_spec{"path", std::string(), "The plugin's library; empty: found by its name."};
    path_spec.file = true;
    for (const Member& member : plugin.value.members) {
      if (member.key == "path") {
        assign(*section, path_spec, member, layer.directory);
        section->path_set = layer.is_override;
      }
    }
  }

  static PluginRequest request_of(const Section& plugin) {  // without its table
    const auto path = plugin.written.find("path");
    return {plugin_of(plugin),
            path == plugin.written.end() ? "" : std::get<std::string>(path->second.value),
            {},
            plugin.origin,
            plugin.path_set,
            plugin.asked};
  }

  void ask_keys(Section& plugin) {
    try {
      const std::optional<std::vector<KeySpec>> keys = plugin_keys_(request_of(plugin));
      plugin.asked = keys.has_value();
      for (const KeySpec& spec : keys.value_or(std::vector<KeySpec>())) {
        if (!key_name_ok(spec.name)) {
          report(plugin, fmt::format("the plugin declares the key {}, which cannot be one\nits author writes letters, "
                                     "digits, '-' and '_'; 'path' is the core's key",
                                     in_quotes(spec.name)));
        } else {
          plugin.keys.push_back(spec);
        }
      }
    } catch (const Error& error) {
      plugin.unknown = true;
      report(plugin, error.what());
    }
  }

  // The first line of a failure is the message, the others (what was tried) stand below the source line.
  void report(const Section& plugin, const std::string& failure) {
    const std::size_t end = failure.find('\n');
    std::string rest = end == std::string::npos
                           ? failure.ends_with("give it another name")
                                 ? "two plugins cannot both bring it: leave one of their tables out"
                                 : "build it, name its library with path = \"...\", or leave the table out"
                           : failure.substr(end + 1);
    rest.erase(0, rest.find_first_not_of(' '));
    for (std::size_t at = rest.find('\n'); at != std::string::npos; at = rest.find('\n', at + 1)) {
      rest.insert(at + 1, "      ");
    }
    diagnostics_.add(plugin.origin, fmt::format("[{}] {}", plugin.title, failure.substr(0, end)), rest);
  }

  void check_plugins(const SettingsLayer& layer) {
    for (const Member& top : layer.root.members) {
      for (const Member& plugin : top.key == "plugins" ? top.value.members : std::vector<Member>()) {
        Section* section = find(plugins_, "plugins." + plugin.key);
        if (section != nullptr && !section->unknown && plugin.value.kind == Node::Kind::table) {
          check_section(*section, plugin.value, layer.directory);
        }
      }
    }
  }

  void check_layer(const SettingsLayer& layer) {
    for (const Member& top : layer.root.members) {
      if (top.key == "plugins") {
        continue;
      }
      if (Section* section = find(core_, top.key)) {
        if (top.value.kind == Node::Kind::table) {
          section->origin = section->origin.empty() ? top.origin : section->origin;
          check_section(*section, top.value, layer.directory);
          if (section->title == "run") {
            choose_length(*section, top.value);
          }
        } else {
          diagnostics_.add(top.value.origin,
                           fmt::format("{}: expected a table, found {}", top.key, kind_name(top.value)),
                           fmt::format("write [{}]", top.key));
        }
      } else {
        refuse_top(top, core_, plugins_, diagnostics_);
      }
    }
  }

  // steps and epochs stand for each other: what a later file or --set writes takes the place of the other.
  void choose_length(Section& run, const Node& table) {
    const auto writes = [&](const char* key) {
      return std::any_of(table.members.begin(), table.members.end(), [&](const Member& m) { return m.key == key; });
    };
    const auto found = run.written.find("epochs");
    const bool by_epochs = found != run.written.end() && std::get<double>(found->second.value) > 0;
    if (by_epochs && writes("epochs") && writes("steps")) {
      diagnostics_.add(found->second.origin, "[run] epochs: steps stand there too, and either says how long the run is",
                       "leave one out");
    } else if (by_epochs && writes("epochs")) {
      run.written.erase("steps");
    } else if (writes("steps")) {
      run.written.erase("epochs");
    }
  }

  void check_section(Section& section, const Node& table, const fs::path& directory) {
    for (const Member& member : table.members) {
      if (section.title.rfind("plugins.", 0) == 0 && member.key == "path") {
        continue;  // taken by find_plugin
      }
      const auto declared = std::find_if(section.keys.begin(), section.keys.end(),
                                         [&](const KeySpec& key) { return key.name == member.key; });
      if (!section.asked || (declared == section.keys.end() && may_be_of_plugin(section, member.key))) {
        if (auto value = written_value(section.title + "." + member.key, member.value, diagnostics_)) {
          section.written[member.key] = {std::move(*value), member.value.origin};
        }
      } else if (declared == section.keys.end()) {
        refuse_key(section, member, core_, plugins_, diagnostics_);
      } else {
        assign(section, *declared, member, directory);
      }
    }
  }

  // A key of a kind whose plugin was not asked, as far as anybody can tell.
  bool may_be_of_plugin(const Section& section, const std::string& key) const {
    const bool chooses = std::any_of(keys_.begin(), keys_.end(), [&](const CoreKey& other) {
      return other.table == section.title && !other.noun.empty();
    });
    return chooses && !nearest(key, names_of(section)) &&
           std::any_of(plugins_.begin(), plugins_.end(), [](const Section& plugin) { return !plugin.asked; });
  }

  void assign(Section& section, const KeySpec& declared, const Member& member, const fs::path& directory) {
    const std::string& key = declared.name;
    auto value = check_value(declared, fmt::format("[{}] {}", section.title, key), member.value, diagnostics_);
    if (!value) {
      broken_.insert(section.title + "." + key);
      return;
    }
    const bool names_tokenizer = section.title == "data" && key == "tokenizer" && *value != Value(std::string("bytes"));
    const auto* text = std::get_if<std::string>(&*value);
    const bool names_template =
        section.title == "data" && key == "chat_template" && text != nullptr && text->ends_with(".toml");
    if (declared.file || names_tokenizer || names_template) {
      if (!make_absolute(*value, directory)) {
        broken_.insert(section.title + "." + key);
        diagnostics_.add(member.value.origin, fmt::format("[{}] {}: not a file name", section.title, key),
                         "write the path of a file");
        return;
      }
    }
    section.written[key] = {std::move(*value), member.value.origin};
    std::vector<std::string>& elements = element_origins_[section.title + "." + key];
    elements.clear();
    for (const Node& item : member.value.items) {
      elements.push_back(item.origin);
    }
  }

  std::map<std::string, Table::Entry> completed(Section& section) {
    std::map<std::string, Table::Entry> entries = section.written;
    for (const KeySpec& declared : section.keys) {
      const bool missing = entries.count(declared.name) == 0;
      if (missing && declared.required && broken_.count(section.title + "." + declared.name) == 0) {
        diagnostics_.add(section.origin, fmt::format("[{}] needs the key '{}'", section.title, declared.name),
                         fmt::format("write {} = ..., {}", declared.name, allowed_text(declared)));
      }
      if (missing) {
        entries[declared.name] = {declared.default_value, "default"};
      }
    }
    return entries;
  }

  void complete(Config& config) {
    for (Section& section : core_) {
      auto entries = completed(section);
      for (const CoreKey& key : keys_) {
        if (key.table == section.title) {
          key.set(config.settings, entries.at(key.spec.name).value);
        }
      }
      config.tables.emplace_back(section.title, std::move(entries));
    }
  }

  // The core's kinds, and those of the plugins in the order of their tables; and the keys of all.
  void fill_catalogue(Config& config) {
    const std::shared_ptr<Catalogue> catalogue = built_in_catalogue();
    for (std::size_t i = 0; i < plugins_.size(); ++i) {
      if (plugin_kinds_ == nullptr || plugins_[i].unknown || !plugins_[i].asked) {
        continue;
      }
      catalogue->set_current_plugin(config.plugins[i].name);
      try {
        plugin_kinds_(config.plugins[i], *catalogue);
      } catch (const Error& error) {
        report(plugins_[i], error.what());
      }
    }
    config.settings.catalogue = catalogue;
    take_keys(declared_keys(*catalogue, [&](const Catalogue::Entry& kind, const std::string& problem) {
      if (const Section* plugin = find(plugins_, "plugins." + kind.plugin)) {
        report(*plugin, fmt::format("{} declares a key that it cannot have: {}", in_quotes(kind.name), problem));
      }
    }));
  }

  static constexpr std::size_t most_plugins = 64;

  std::vector<CoreKey> keys_;
  const PluginKeys& plugin_keys_;
  const PluginKinds& plugin_kinds_;
  const FurtherCheck& layout_check_;
  std::shared_ptr<Sources> sources_;
  Diagnostics diagnostics_;
  std::vector<Section> core_;
  std::vector<Section> plugins_;
  std::set<std::string> broken_;
  std::map<std::string, std::vector<std::string>> element_origins_;
};

}  // namespace

Config load_config(const std::string& file, const std::vector<std::string>& overrides, const PluginKeys& plugin_keys,
                   const PluginKinds& plugin_kinds, const FurtherCheck& layout_check) {
  return Loader(plugin_keys, plugin_kinds, layout_check).load(file, overrides);
}

}  // namespace orthant
