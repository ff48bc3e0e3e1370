// Ranks that are alike are planned once.
//
// What may make two ranks of a stage unlike: what a plugin says of them (Plugin::likeness); how many choices the
// routing has for their experts; and their places among the ranks that sum a gradient, where one counts it, owns
// another part of it, or writes it. Parts of dims have equal sizes on all ranks: others are refused. Most layouts
// differ in none of these. So the first and the last rank of those that plugins call alike are compared, which have the
// first and the last place along every axis. Where they differ, the ranks are parted by their places and planned in the
// same way; and where those still differ, one by one.
#include <algorithm>
#include <map>

#include "core/arch/links.h"
#include "core/dry_run/stage_view.h"
#include "core/session/session.h"

namespace orthant {
namespace {

// The shortest step of a rank, by each routing.
using Shortest = std::vector<RankPlan>;

bool alike(const Shortest& a, const Shortest& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const RankPlan& x, const RankPlan& y) {
    return x.memory == y.memory && bytes_sent(x.step) == bytes_sent(y.step);
  });
}

bool alike(const RankClass& a, const RankClass& b) {
  return a.memory == b.memory && a.worst == b.worst && a.recorded == b.recorded && a.sent == b.sent;
}

using Key = std::vector<std::int64_t>;
template <class KeyOf>
std::vector<std::vector<int>> parted(const std::vector<int>& ranks, KeyOf key_of) {
  std::map<Key, std::vector<int>> parts;
  for (const int rank : ranks) {
    parts[key_of(rank)].push_back(rank);
  }
  std::vector<std::vector<int>> result;
  for (auto& [key, part] : parts) {
    result.push_back(std::move(part));
  }
  return result;
}

// The first, one between, or the last.
std::int64_t place_in(const std::vector<int>& members, int rank) {
  return rank == members.front() ? 0 : rank == members.back() ? 2 : 1;
}

// Of a rank among those that share something of each parameter with it, and its place along the axes of experts.
class Places {
 public:
  Places(const Plan& plan, int stage) : plan_(plan) {
    for (const LayerSpecs& layer : parameters_of(plan.links())) {
      for (const ParamSpec& spec : layer.params) {
        const bool here = spec.layers.empty() || std::any_of(spec.layers.begin(), spec.layers.end(), [&](int number) {
                            return plan.stage_of_layer(number) == stage;
                          });
        const bool known = std::any_of(kinds_.begin(), kinds_.end(), [&](const ParamSpec* k) {
          return k->region == spec.region && k->layers.size() == spec.layers.size() &&
                 std::equal(k->split, k->split + 2, spec.split) && k->repeats == spec.repeats &&
                 k->expert.has_value() == spec.expert.has_value() &&
                 (!spec.repeats || std::equal(k->units, k->units + 2, spec.units));
        });
        if (here && !known) {
          kinds_.push_back(&spec);
        }
      }
    }
  }

  Key of(int rank) const {
    Key key;
    for (const ParamSpec* spec : kinds_) {
      const std::vector<int> sum = plan_.sum_members(*spec, rank), holders = plan_.holders(*spec, rank);
      key.push_back(place_in(sum, rank));
      key.push_back(place_in(holders, rank));
      key.push_back(std::binary_search(sum.begin(), sum.end(), holders.front()) ? 1 : 0);
    }
    for (const AxisId axis : plan_.axes_of(Dim::expert, Region::experts)) {
      key.push_back(plan_.mesh().coordinate(axis, rank));
    }
    return key;
  }

 private:
  const Plan& plan_;
  std::vector<const ParamSpec*> kinds_;
};

class Classes {
 public:
  Classes(const Config& config, std::int64_t step, double recorded, PlanEffort* effort)
      : config_(config), step_(step), effort_(effort), routings_({{}, {Load::worst}}) {
    if (recorded > 0) {
      routings_.push_back({Load::recorded, recorded});
    }
  }

  void begin_stage(StageView stage) { stage_ = std::move(stage); }
  // False, and nothing is added: the first and the last of them are not alike.
  bool add_alike(const std::vector<int>& ranks) {
    if (!alike(shortest(ranks.front()), shortest(ranks.back()))) {
      return false;
    }
    const RankClass& first = planned(ranks.front());
    auto same = std::find_if(of_stage_.begin(), of_stage_.end(), [&](const RankClass& c) { return alike(c, first); });
    if (same == of_stage_.end()) {
      of_stage_.push_back(first);
      same = std::prev(of_stage_.end());
      same->ranks.clear();
    }
    same->ranks.insert(same->ranks.end(), ranks.begin(), ranks.end());
    return true;
  }

  void end_stage() {
    for (RankClass& c : of_stage_) {
      std::sort(c.ranks.begin(), c.ranks.end());
    }
    std::sort(of_stage_.begin(), of_stage_.end(),
              [](const RankClass& a, const RankClass& b) { return a.ranks.front() < b.ranks.front(); });
    std::move(of_stage_.begin(), of_stage_.end(), std::back_inserter(classes_));
    of_stage_.clear();
    planned_.clear();
    shortest_.clear();
  }

  std::vector<RankClass> result() && { return std::move(classes_); }

 private:
  const Shortest& shortest(int rank) {
    Shortest& of = shortest_[rank];
    for (std::size_t i = of.size(); i < routings_.size(); ++i) {
      of.push_back(walk_shortest(config_, rank, step_, routings_[i], stage_, effort_));
    }
    return of;
  }

  const RankClass& planned(int rank) {
    const auto [found, fresh] = planned_.try_emplace(rank);
    RankClass& made = found->second;
    if (!fresh) {
      return made;
    }
    std::vector<RankPlan> whole;
    for (std::size_t i = 0; i < routings_.size(); ++i) {
      whole.push_back(plan_by(shortest(rank)[i], config_, step_, routings_[i], stage_, effort_));
    }
    made = {.ranks = {rank},
            .memory = whole[0].memory,
            .worst = whole[1].memory,
            .recorded = whole.size() > 2 ? std::optional(whole[2].memory) : std::nullopt,
            .sent = bytes_sent(whole[0].step),
            .recomputed = whole[0].recomputed};
    // Side streams that are late may let go of the host's tensors at another moment.
    made.worst.host_peak = std::max(made.worst.host_peak, made.memory.host_peak);
    return made;
  }

  const Config& config_;
  const std::int64_t step_;
  PlanEffort* const effort_;
  std::vector<Routed> routings_;
  StageView stage_;
  std::map<int, Shortest> shortest_;  // of this stage, as the next two
  std::map<int, RankClass> planned_;
  std::vector<RankClass> of_stage_, classes_;
};

}  // namespace

std::vector<RankClass> plan_classes(const Config& config, std::int64_t step, double recorded, PlanEffort* effort) {
  Session session(config);
  session.plan(0, nullptr, nullptr);
  Classes classes(config, step, recorded, effort);
  for (const std::vector<int>& stage : ranks_of_stages(session.plan())) {
    Session there(config);
    there.share_links(session.plan().shared_links());
    there.plan(stage.front(), nullptr, nullptr);
    classes.begin_stage(view_of(config, there.plan(), step));
    for (const std::vector<int>& ranks : parted(stage, [&](int rank) { return session.likeness(rank); })) {
      if (classes.add_alike(ranks)) {
        continue;
      }
      const Places places(session.plan(), session.plan().stage_of_rank(ranks.front()));
      for (const std::vector<int>& of_places : parted(ranks, [&](int rank) { return places.of(rank); })) {
        if (classes.add_alike(of_places)) {
          continue;
        }
        for (const int rank : of_places) {
          classes.add_alike({rank});
        }
      }
    }
    classes.end_stage();
  }
  return std::move(classes).result();
}

}  // namespace orthant
