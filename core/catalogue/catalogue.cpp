#include <orthant/catalogue.h>

#include <algorithm>

namespace orthant {

const std::vector<Catalogue::Entry>& Catalogue::entries(const std::string& noun) const {
  static const std::vector<Entry> none;
  const auto found = kinds_.find(noun);
  return found == kinds_.end() ? none : found->second;
}

std::vector<std::string> Catalogue::names(const std::string& noun) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries(noun)) {
    names.push_back(entry.name);
  }
  return names;
}

std::vector<std::string> Catalogue::nouns() const {
  std::vector<std::string> nouns;
  for (const auto& [noun, entries] : kinds_) {
    nouns.push_back(noun);
  }
  return nouns;
}

void Catalogue::add(const std::string& noun, Entry entry) {
  if (entry.name.empty() || entry.kind == nullptr) {
    throw ConfigError(fmt::format("plugin '{}' adds {} {} without {}", entry.plugin, noun, entry.name,
                                  entry.name.empty() ? "a name" : "an object"));
  }
  if (const Entry* other = find(noun, entry.name)) {
    throw ConfigError(fmt::format("plugin '{}' adds {} '{}', which {} has added: give it another name", entry.plugin,
                                  noun, entry.name,
                                  other->plugin.empty() ? "the core" : fmt::format("plugin '{}'", other->plugin)));
  }
  kinds_[noun].push_back(std::move(entry));
}

const Catalogue::Entry* Catalogue::find(const std::string& noun, const std::string& name) const {
  const std::vector<Entry>& known = entries(noun);
  const auto found = std::find_if(known.begin(), known.end(), [&](const Entry& e) { return e.name == name; });
  return found == known.end() ? nullptr : &*found;
}

const Catalogue::Entry& Catalogue::entry(const std::string& noun, const std::string& name) const {
  const Entry* found = find(noun, name);
  if (found == nullptr) {
    throw ConfigError(fmt::format("there is no {} '{}': known are {}", noun, name, fmt::join(names(noun), ", ")));
  }
  return *found;
}

}  // namespace orthant
