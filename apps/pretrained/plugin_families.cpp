#include "apps/pretrained/plugin_families.h"

#include <orthant/catalogue.h>
#include <orthant/family.h>
#include <orthant/model.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/config/value_text.h"
#include "core/modules/find_library.h"
#include "core/modules/module.h"

namespace orthant {
namespace {

ConfigLink::Theirs json_of(const Value& value) {
  return std::visit([](const auto& one) { return ConfigLink::Theirs(one); }, value);
}

// What plugins see of a ConfigLink.
class LinkedKeys final : public FamilyKeys {
 public:
  explicit LinkedKeys(ConfigLink& link) : link_(link) {}

  bool reading() const override { return link_.reading(); }
  void integer(const char* theirs, const char* ours, std::optional<std::int64_t> absent) override {
    link_.integer(theirs, ours, absent);
  }
  void number(const char* theirs, const char* ours, std::optional<double> absent) override {
    link_.number(theirs, ours, absent);
  }
  void flag(const char* theirs, const char* ours, std::optional<bool> absent) override {
    link_.flag(theirs, ours, absent);
  }
  void theirs(const char* key, const Value& value) override { link_.theirs(key, json_of(value)); }
  void ours(const char* key, const Value& value) override { link_.ours(key, toml_text(value)); }
  void besides(std::initializer_list<const char*> theirs) override { link_.besides(theirs); }
  void ours_besides(std::initializer_list<const char*> ours) override { link_.ours_besides(ours); }

  std::optional<Value> take(const char* theirs) override {
    const ConfigLink::Theirs value = link_.take(theirs);
    if (value.is_boolean()) {
      return value.get<bool>();
    }
    if (value.is_number_integer()) {
      return value.get<std::int64_t>();
    }
    if (value.is_number_float()) {
      return value.get<double>();
    }
    if (value.is_string()) {
      return value.get<std::string>();
    }
    if (!value.is_null()) {
      link_.refuse(fmt::format("{} = {}: a number, a flag or a text was expected", theirs, value.dump()));
    }
    return std::nullopt;
  }
  void set(const char* ours, const Value& value) override { link_.set(ours, toml_text(value)); }
  std::int64_t our_integer(const char* ours) override { return link_.our_integer(ours); }
  double our_number(const char* ours) override { return link_.our_number(ours); }
  bool our_flag(const char* ours) override { return link_.our_flag(ours); }
  std::string our_text(const char* ours) override { return link_.our_text(ours); }
  void put(const char* theirs, const Value& value) override { link_.put(theirs, json_of(value)); }
  void refuse(const std::string& why) override { link_.refuse(why); }

 private:
  ConfigLink& link_;
};

FamilyPtr family_of(const Catalogue::Entry& entry) {
  const auto of = std::static_pointer_cast<const PublishedFamily>(entry.kind);
  Family family;
  family.model_type = entry.name;
  family.architecture = of->architecture();
  family.state = [of](ConfigLink& link) {
    link.besides({"architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "auto_map",
                  "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "output_attentions",
                  "output_hidden_states", "return_dict", "is_encoder_decoder"});
    LinkedKeys keys(link);
    of->state(keys);
  };
  family.kind = of->kind();
  family.plugin = entry.plugin;
  family.theirs = [of](const Settings& s, const std::string& ours) { return of->tensor(s, ours); };
  family.copies = [of](const Settings& s) { return of->copies(s); };
  return std::make_shared<const Family>(std::move(family));
}

FamilyPtr lasting(const Family& family) {
  return {FamilyPtr(), &family};
}

// Plugins that lie where plugins are searched for, the first of a name.
std::vector<std::string> found_plugins() {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const std::filesystem::path& folder : module_folders()) {
    for (const auto& [name, file] : libraries_in(folder, "plugin")) {
      if (seen.insert(name).second) {
        names.push_back(name);
      }
    }
  }
  return names;
}

}  // namespace

std::vector<FamilyPtr> families_of(const std::string& kind, const Catalogue& catalogue) {
  std::vector<FamilyPtr> found;
  for (const Family& family : families()) {
    if (family.kind == kind) {
      found.push_back(lasting(family));
    }
  }
  for (const Catalogue::Entry& entry : catalogue.entries(PublishedFamily::noun)) {
    if (const FamilyPtr family = family_of(entry); family->kind == kind) {
      found.push_back(family);
    }
  }
  return found;
}

FamilyPtr find_family(const std::string& model_type, const Catalogue& catalogue) {
  if (const Family* own = find_family(model_type); own != nullptr) {
    return lasting(*own);
  }
  for (const Catalogue::Entry& entry : catalogue.entries(PublishedFamily::noun)) {
    if (entry.name == model_type) {
      return family_of(entry);
    }
  }
  return nullptr;
}

FamilyPtr find_family_of_plugins(const std::string& model_type, const PluginKeys& plugin_keys,
                                 const PluginKinds& plugin_kinds, std::vector<std::string>& known) {
  for (const std::string& name : plugin_kinds ? found_plugins() : std::vector<std::string>()) {
    Catalogue catalogue;
    try {
      PluginRequest request{.name = name, .path = {}, .table = {}, .origin = {}};
      std::map<std::string, Table::Entry> entries;
      for (const KeySpec& key : plugin_keys(request).value_or(std::vector<KeySpec>())) {
        entries[key.name] = {key.default_value, "default"};
      }
      request.table = Table("plugins." + name, std::move(entries));
      catalogue.set_current_plugin(name);
      plugin_kinds(request, catalogue);
    } catch (const Error&) {
      continue;  // it is another build's, or needs what nobody has written
    }
    for (const Catalogue::Entry& entry : catalogue.entries(PublishedFamily::noun)) {
      known.push_back(entry.name);
    }
    if (FamilyPtr found = find_family(model_type, catalogue); found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

OurKeys plugin_table(const Config& config) {
  const Settings& s = config.settings;
  const std::vector<Catalogue::Entry>& kinds = s.catalogue->entries(ModelKind::noun);
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const auto& entry) { return entry.name == s.model.kind; });
  if (kind == kinds.end() || kind->plugin.empty()) {
    return {};
  }
  OurKeys keys = {{"plugins." + kind->plugin, ""}};
  for (const PluginRequest& request : config.plugins) {
    if (request.name == kind->plugin && !request.path.empty()) {
      keys.emplace_back("plugins." + request.name + ".path", toml_text(Value(request.path)));
    }
  }
  return keys;
}

}  // namespace orthant
