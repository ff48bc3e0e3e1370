// Catalogue: the named parts from which a configuration chooses.
//
// A noun is an interface of which there are several kinds: a gate, an optimizer, a source of text. Each noun has a
// header of its own. A kind is one implementation under a name, and the name is what stands in the configuration:
// `moe.router = "switch"`. The core adds its kinds by the same call as a plugin does (Plugin::add_to).
//
//   struct Optimizer { static constexpr const char* noun = "optimizer"; ... };
//   catalogue.add<Optimizer>("lion", "Signs of a momentum (Chen et al., 2023).", std::make_shared<Lion>());
//   const Optimizer& chosen = catalogue.get<Optimizer>("lion");
//
// Ownership: the catalogue shares its kinds. A library is never closed, so a kind outlives its plugin object.
// Thread safety: reading is safe from several threads once a configuration is loaded. A kind is shared by all ranks of
// a process: its methods are const and safe to call at the same time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/error.h>
#include <orthant/keys.h>

namespace orthant {

class Catalogue {
 public:
  struct Entry {
    std::string name;
    std::string help;    // one sentence; with its source (paper or system)
    std::string plugin;  // the one that added it; empty: built in
    std::shared_ptr<const void> kind;
    std::function<std::vector<KindKey>()> keys = {};  // that it reads; undefined where the noun's kinds have none
  };

  // Errors: ConfigError for a name that the noun has already, naming both plugins, and for an empty name.
  template <class Noun>
  void add(std::string name, std::string help, std::shared_ptr<const Noun> kind) {
    std::function<std::vector<KindKey>()> keys;
    if constexpr (requires { kind->keys(); }) {
      keys = [kind] { return kind->keys(); };
    }
    add(Noun::noun, {std::move(name), std::move(help), plugin_, std::move(kind), std::move(keys)});
  }

  template <class Noun>
  bool has(const std::string& name) const {
    return find(Noun::noun, name) != nullptr;
  }
  // Errors: ConfigError listing the names that there are.
  template <class Noun>
  const Noun& get(const std::string& name) const {
    return *static_cast<const Noun*>(entry(Noun::noun, name).kind.get());
  }
  // In the order in which they were added: the core's first.
  template <class Noun>
  std::vector<std::string> names() const {
    return names(Noun::noun);
  }

  const std::vector<Entry>& entries(const std::string& noun) const;
  std::vector<std::string> names(const std::string& noun) const;
  std::vector<std::string> nouns() const;
  // The kinds added from now on are this plugin's. The loader calls it before Plugin::add_to.
  void set_current_plugin(std::string name) { plugin_ = std::move(name); }

 private:
  void add(const std::string& noun, Entry entry);
  const Entry* find(const std::string& noun, const std::string& name) const;
  const Entry& entry(const std::string& noun, const std::string& name) const;

  std::map<std::string, std::vector<Entry>> kinds_;
  std::string plugin_;
};

// The kinds that the core brings, in a catalogue of the caller's own.
std::shared_ptr<Catalogue> built_in_catalogue();

}  // namespace orthant
