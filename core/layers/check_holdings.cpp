#include "core/layers/check_holdings.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "core/plan/keeper_chain.h"
#include "parallel/host_collectives.h"

namespace orthant {
namespace {

struct Piece {
  std::int64_t begin = 0, end = 0;
  int rank = 0;
};

struct Told {
  Holding holding;
  std::string plugin;  // that changed it; empty: none did
};

// By the name of a group's first parameter.
using Holdings = std::map<std::string, Told>;

std::vector<Holdings> gather_holdings(const ParamStore& store, const KeeperChain& keepers, Group& world,
                                      Stream& stream) {
  std::string mine;
  for (const auto& group : store.groups()) {
    if (group->sum->size() > 1 && !group->params.empty()) {
      mine += fmt::format("{} {} {} {} {}\n{}\n", group->padded, group->owned_begin, group->owned_elements,
                          group->owner ? 1 : 0, group->params.front().spec.name, keepers.holder_of(*group));
    }
  }
  std::vector<Holdings> all;
  for (const std::string& text : gather_texts(mine, world, stream)) {
    std::istringstream lines(text);
    Holding h;
    std::string name, plugin;
    Holdings& of_rank = all.emplace_back();
    while (lines >> h.padded >> h.owned_begin >> h.owned_elements >> h.owner && lines.ignore() &&
           std::getline(lines, name) && std::getline(lines, plugin)) {
      of_rank.emplace(name, Told{h, plugin});
    }
  }
  return all;
}

void check_group(const ParamGroup& group, const std::vector<Holdings>& all) {
  std::vector<Piece> pieces;
  std::string plugin;
  const int first = group.sum->members().front();
  const auto of = [&](int rank) -> const Holding& {
    const Holdings& of_rank = all[rank];
    const auto found = of_rank.find(group.params.front().spec.name);
    require(found != of_rank.end(), "rank {} does not hold '{}', whose gradient it sums", rank, group.name);
    plugin = found->second.plugin.empty() ? plugin : found->second.plugin;
    return found->second.holding;
  };
  for (const int rank : group.sum->members()) {
    const Holding& h = of(rank);
    require(h.padded == of(first).padded,
            "plugin '{}' pads '{}' to {} elements on rank {}, and to {} on rank {}: collectives need one size", plugin,
            group.name, of(first).padded, first, h.padded, rank);
    if (h.owner && h.owned_elements > 0) {
      pieces.push_back({h.owned_begin, h.owned_begin + h.owned_elements, rank});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  std::int64_t at = 0;
  for (const Piece& piece : pieces) {
    require(
        piece.begin == at,
        "plugin '{}' shares out '{}' so that elements {} to {} have {}: the owners' ranges tile [0, {}) among ranks "
        "{}, each with one owner",
        plugin, group.name, std::min(at, piece.begin), std::max(at, piece.begin),
        piece.begin > at ? "no owner" : fmt::format("two owners, rank {} one of them", piece.rank), of(first).padded,
        fmt::join(group.sum->members(), " "));
    at = piece.end;
  }
  require(at == of(first).padded, "plugin '{}' shares out '{}' so that elements {} to {} have no owner among ranks {}",
          plugin, group.name, at, of(first).padded, fmt::join(group.sum->members(), " "));
}

}  // namespace

void check_holdings(const ParamStore& store, Plan& plan, Stream& stream) {
  if (plan.keepers().empty()) {
    return;
  }
  Group& world = plan.mesh().world_group("holdings");  // of a planning rank too: groups are numbered
  if (plan.device().name() == "meta") {                // which hears nothing of the others
    return;
  }
  const std::vector<Holdings> all = gather_holdings(store, plan.keepers(), world, stream);
  for (const auto& group : store.groups()) {
    if (group->sum->size() > 1 && !group->params.empty()) {
      check_group(*group, all);
    }
  }
}

}  // namespace orthant
