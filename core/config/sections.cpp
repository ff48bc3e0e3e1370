#include "core/config/sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/config/check.h"
#include "core/config/suggest.h"

namespace orthant {
namespace {

bool is_there(const std::vector<Section>& sections, const std::string& title) {
  return std::any_of(sections.begin(), sections.end(), [&](const Section& s) { return s.title == title; });
}

// The tables that have a key of this name, other than `except`: "[optimizer] or [run]".
std::string tables_with(const std::string& key, const std::string& except, const std::vector<Section>& core,
                        const std::vector<Section>& plugins) {
  std::string tables;
  for (const std::vector<Section>* sections : {&core, &plugins}) {
    for (const Section& section : *sections) {
      const bool has = std::any_of(section.keys.begin(), section.keys.end(),
                                   [&](const KeySpec& declared) { return declared.name == key; });
      if (has && section.title != except) {
        tables += (tables.empty() ? "[" : " or [") + section.title + "]";
      }
    }
  }
  return tables;
}

}  // namespace

void refuse_top(const Member& top, const std::vector<Section>& core, const std::vector<Section>& plugins,
                Diagnostics& diagnostics) {
  if (top.value.kind == Node::Kind::table) {
    std::vector<std::string> tables;
    for (const Section& section : core) {
      tables.push_back(section.title);
    }
    tables.emplace_back("plugins");
    std::string advice = fmt::format("the tables are [{}]", fmt::join(tables, "], ["));
    if (const auto near = nearest(top.key, tables)) {
      advice = fmt::format("did you mean [{}]?", *near);
    } else if (is_there(plugins, "plugins." + top.key) || top.key == "data" || top.key == "expert") {
      advice = fmt::format("plugins are written [plugins.{}]", printable(top.key));
    }
    diagnostics.add(top.origin, fmt::format("unknown table [{}]", printable(top.key)), advice);
    return;
  }
  const std::string owners = tables_with(top.key, "", core, plugins);
  const bool in_file = !top.origin.starts_with("--set");
  std::string advice = owners.empty() ? (in_file ? "write keys below a table's header, such as [run]"
                                                 : "write TABLE.KEY=VALUE, such as run.steps=100")
                       : in_file      ? fmt::format("write it below {}", owners)
                                      : fmt::format("it is a key of {}: write TABLE.{}=VALUE", owners, top.key);
  if (const auto near = nearest(top.key, {"extends"})) {
    advice = "did you mean 'extends'?";
  }
  diagnostics.add(top.origin, fmt::format("{} is outside of any table", in_quotes(top.key)), advice);
}

std::vector<std::string> names_of(const Section& section) {
  std::vector<std::string> names;
  for (const KeySpec& declared : section.keys) {
    names.push_back(declared.name);
  }
  if (section.title.rfind("plugins.", 0) == 0) {
    names.push_back("path");
  }
  return names;
}

void refuse_key(const Section& section, const Member& member, const std::vector<Section>& core,
                const std::vector<Section>& plugins, Diagnostics& diagnostics) {
  const std::vector<std::string> names = names_of(section);
  std::string advice;
  const std::string owners = tables_with(member.key, section.title, core, plugins);
  if (const auto near = nearest(member.key, names)) {
    advice = fmt::format("did you mean '{}'?", *near);
  }
  if (!owners.empty()) {
    advice += fmt::format("{}'{}' is a key of {}", advice.empty() ? "" : " ", member.key, owners);
  }
  if (advice.empty()) {
    advice = fmt::format("the keys of [{}] are {}", section.title, fmt::join(names, ", "));
  }
  for (const Section& plugin : plugins) {
    if (!plugin.asked && section.title.rfind("plugins.", 0) != 0) {
      advice += fmt::format(
          "\n      or a key of a kind that [{}] brings? Its library was not opened: add --load-plugins if you trust it",
          plugin.title);
    }
  }
  diagnostics.add(member.origin, fmt::format("unknown key {} in [{}]", in_quotes(member.key), section.title), advice);
}

}  // namespace orthant
