#include "core/arch/links.h"

#include <orthant/catalogue.h>
#include <orthant/gate.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <utility>

#include "core/arch/trained.h"

namespace orthant {
namespace {

// Norms, residual sums and lookups are bound by memory: about this many operations' time for each element they touch.
constexpr double element = 20;

void expect(bool holds, const std::string& message) {
  if (!holds) {
    throw ConfigError(message);
  }
}

void check_slots(const Link& link, bool last, int spaces) {
  std::set<std::string> names;
  expect(last || !link.passes.empty(), fmt::format("link '{}' passes nothing on", link.name));
  for (const Slot& slot : link.passes) {
    expect(
        names.insert(slot.name).second && slot.columns > 0 && (slot.dtype == DType::f32 || slot.dtype == DType::bf16),
        fmt::format("link '{}' passes on '{}' with {} columns of {}: expected names that differ, columns above 0, "
                    "and f32 or bf16",
                    link.name, slot.name, slot.columns, name_of(slot.dtype)));
    expect(slot.space >= 0 && slot.space < spaces,
           fmt::format("link '{}' passes on '{}' of token space {}, and the model has {}", link.name, slot.name,
                       slot.space, spaces));
  }
  expect(link.space >= 0 && link.space < spaces,
         fmt::format("link '{}' is of token space {}, and the model has {}", link.name, link.space, spaces));
}

// What the contract asks of a kind, and what the core sets.
void complete(std::vector<Link>& links, const Settings& s) {
  std::set<std::string> names;
  int blocks = 0, routed = 0;
  const int count = static_cast<int>(links.size()), spaces = static_cast<int>(spaces_of(s).size());
  for (int number = 0; number < count; ++number) {
    Link& link = links[static_cast<std::size_t>(number)];
    link.number = number;
    expect(!link.name.empty() && names.insert(link.name).second,
           fmt::format("link {} has no name of its own ('{}')", number, link.name));
    expect(link.block == -1 || link.block == blocks,
           fmt::format("link '{}' is block {}, behind {} blocks", link.name, link.block, blocks));
    blocks += link.block == -1 ? 0 : 1;
    expect(link.router.empty() || (link.block >= 0 && s.moe.experts > 0),
           fmt::format("link '{}' has a router, and {}", link.name,
                       link.block < 0 ? "is no block" : "the model has no experts"));
    link.routed = link.router.empty() ? -1 : routed++;
    check_slots(link, number + 1 == count, spaces);
    if (link.block >= 0 && link.again_full == 0) {
      link.again_full = cost_of(link);
    }
    for (LayerSpecs& layer : link.parameters) {
      layer.layer = number;
      for (ParamSpec& spec : layer.params) {
        if (spec.layers.empty()) {
          spec.layers = {number};
        }
        expect(std::all_of(spec.layers.begin(), spec.layers.end(), [&](int of) { return of >= 0 && of < count; }),
               fmt::format("'{}' is used by links [{}], and there are {}", spec.name, fmt::join(spec.layers, ", "),
                           count));
      }
    }
    add_adapters(link.parameters, s);
    set_rates(link.parameters, s.optimizer);
    freeze(link.parameters, s);
  }
  expect(std::any_of(links.begin(), links.end(), [](const Link& link) { return link.objective; }),
         "no link has an objective");
}

bool is_built_in(const Settings& s) {
  const std::vector<Catalogue::Entry>& kinds = s.catalogue->entries(ModelKind::noun);
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const Catalogue::Entry& entry) { return entry.name == s.model.kind && entry.plugin.empty(); });
}

}  // namespace

DType compute_type(const Settings& settings) {
  return settings.run.dtype == ComputeType::fp32 ? DType::f32 : DType::bf16;
}

const ModelKind& model_kind(const Settings& s) {
  return s.catalogue->get<ModelKind>(s.model.kind);
}

std::vector<Space> ModelKind::spaces(const Settings& s) const {
  return {{.name = "tokens", .positions = s.data.sequence_length}};
}

std::vector<Space> spaces_of(const Settings& s) {
  std::vector<Space> spaces = model_kind(s).spaces(s);
  const bool sound = !spaces.empty() && spaces.front().positions == s.data.sequence_length &&
                     std::all_of(spaces.begin(), spaces.end(), [](const Space& space) { return space.positions > 0; });
  if (!sound) {
    throw SettingError(
        "model.kind",
        fmt::format("[model] kind: \"{}\" has no token spaces that can be: the first has the positions of "
                    "data.sequence_length, and each has one at least",
                    s.model.kind));
  }
  return spaces;
}

std::vector<Link> links_of(const Settings& s) {
  const ModelKind& kind = model_kind(s);
  try {
    std::vector<Link> links = kind.links(s);
    complete(links, s);
    return links;
  } catch (const SettingError&) {
    throw;
  } catch (const ConfigError& refused) {
    if (is_built_in(s)) {  // it says itself what is wrong: a part of the block, say
      throw;
    }
    throw SettingError("model.kind", fmt::format("[model] kind: \"{}\": {}", s.model.kind, refused.what()));
  }
}

const Link& find(const std::vector<Link>& links, const std::string& name) {
  const auto found = std::find_if(links.begin(), links.end(), [&](const Link& link) { return link.name == name; });
  require(found != links.end(), "the model has no link '{}'", name);
  return *found;
}

const Link& head_of(const std::vector<Link>& links) {
  return *std::find_if(links.begin(), links.end(), [](const Link& link) { return link.objective; });
}

int blocks_in(const std::vector<Link>& links) {
  return static_cast<int>(std::count_if(links.begin(), links.end(), [](const Link& link) { return link.block >= 0; }));
}

std::vector<const Link*> routed_links(const std::vector<Link>& links) {
  std::vector<const Link*> found;
  for (const Link& link : links) {
    if (link.routed >= 0) {
      found.push_back(&link);
    }
  }
  return found;
}

int routed_in(const std::vector<Link>& links) {
  return routed_before(links, static_cast<int>(links.size()));
}

int routed_before(const std::vector<Link>& links, int number) {
  return static_cast<int>(
      std::count_if(links.begin(), links.begin() + number, [](const Link& link) { return link.routed >= 0; }));
}

std::string told(const Link& link) {
  const bool numbered = std::isdigit(static_cast<unsigned char>(link.name.back())) != 0;
  return numbered ? link.name : "the " + link.name;
}

double cost_of(const Link& link) {
  return element * link.touched + link.flops;
}

double training_flops(const std::vector<Link>& links) {
  double forward = 0;
  for (const Link& link : links) {
    forward += link.flops;
  }
  return 3 * forward;
}

std::vector<LayerSpecs> parameter_table(const Settings& settings) {
  std::vector<LayerSpecs> table;
  for (Link& link : links_of(settings)) {
    std::move(link.parameters.begin(), link.parameters.end(), std::back_inserter(table));
  }
  return table;
}

bool router_learns(const LayerSpecs& layer) {
  return std::any_of(layer.params.begin(), layer.params.end(), [](const ParamSpec& spec) {
    return spec.region == Region::router && (!spec.frozen || spec.adapted);
  });
}

std::vector<GateStateSpec> gate_state_table(const Settings& s) {
  const bool any = s.moe.experts > 0 && gate_of(s).keeps_state(s.moe);
  return any ? gate_state_table(s, links_of(s)) : std::vector<GateStateSpec>();
}

std::vector<GateStateSpec> gate_state_table(const Settings& s, const std::vector<Link>& links) {
  std::vector<GateStateSpec> table;
  if (s.moe.experts == 0 || !gate_of(s).keeps_state(s.moe)) {
    return table;
  }
  for (const Link* link : routed_links(links)) {
    const bool learns = std::any_of(link->parameters.begin(), link->parameters.end(), router_learns);
    table.push_back({gate_state_prefix + link->router, link->number, learns});
  }
  return table;
}

}  // namespace orthant
