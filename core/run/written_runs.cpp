#include "core/run/written_runs.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "parallel/host_collectives.h"

namespace orthant {
namespace {

struct Run {
  std::int64_t begin = 0, end = 0;
};

// Elements that the same ranks hold, cut into equal runs, one for each of them. What they hold is named piece by piece,
// in the same order on all of them: first all of it to count it, then again to cut it.
class Cutter {
 public:
  void count(const std::vector<int>& ranks, std::int64_t elements) { held_[ranks].total += elements; }

  // Of the next `elements`, counted from 0, the runs of those ranks for which `wanted` is true.
  template <class Wanted>
  std::vector<Run> next(const std::vector<int>& ranks, std::int64_t elements, Wanted&& wanted) {
    std::vector<Run> runs;
    if (elements == 0) {
      return runs;
    }
    Held& held = held_.at(ranks);
    const std::int64_t parts = static_cast<std::int64_t>(ranks.size());
    const auto cut = [&](std::int64_t part) { return held.total * part / parts - held.at; };
    for (std::int64_t part = held.at * parts / held.total; part < parts && cut(part) < elements; ++part) {
      const Run run{std::max<std::int64_t>(cut(part), 0), std::min(cut(part + 1), elements)};
      if (run.begin < run.end && wanted(ranks[part])) {
        if (!runs.empty() && runs.back().end == run.begin) {
          runs.back().end = run.end;
        } else {
          runs.push_back(run);
        }
      }
    }
    held.at += elements;
    return runs;
  }

 private:
  struct Held {
    std::int64_t total = 0;
    std::int64_t at = 0;  // of the cutting
  };
  std::map<std::vector<int>, Held> held_;
};

// By the name of a group's first parameter: the range that a rank owns of it.
using OwnedRanges = std::map<std::string, Run>;

std::vector<OwnedRanges> gather_owned_ranges(const ParamStore& store, Group& world, Stream& stream) {
  std::string mine;
  for (const auto& group : store.groups()) {
    if (group->sum->size() > 1 && !group->params.empty()) {
      mine += fmt::format("{} {} {}\n", group->owned_begin, group->owned_begin + group->owned_elements,
                          group->params.front().spec.name);
    }
  }
  std::vector<OwnedRanges> all;
  for (const std::string& text : gather_texts(mine, world, stream)) {
    std::istringstream lines(text);
    Run run;
    std::string name;
    OwnedRanges& ranges = all.emplace_back();
    while (lines >> run.begin >> run.end && lines.ignore() && std::getline(lines, name)) {
      ranges.emplace(name, run);
    }
  }
  return all;
}

// A part of what this rank owns of a group, and the ranks of its sum that own it too.
struct Shared {
  Run run;
  std::vector<int> ranks;
};

std::vector<Shared> shared_parts(const ParamGroup& group, const std::vector<OwnedRanges>& owned, int self) {
  const Run mine{group.owned_begin, std::min(group.owned_begin + group.owned_elements, group.elements)};
  if (group.sum->size() == 1) {
    return {{mine, {self}}};
  }
  const auto range_of = [&](int rank) {
    const OwnedRanges& ranges = owned[rank];
    const auto found = ranges.find(group.params.front().spec.name);
    return found == ranges.end() ? Run() : found->second;
  };
  if (mine.begin >= mine.end) {
    return {};
  }
  std::vector<std::int64_t> cuts = {mine.begin, mine.end};
  for (int rank : group.sum->members()) {
    const Run other = range_of(rank);
    for (std::int64_t cut : {other.begin, other.end}) {
      if (cut > mine.begin && cut < mine.end) {
        cuts.push_back(cut);
      }
    }
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<Shared> parts;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) {
      continue;
    }
    Shared& part = parts.emplace_back(Shared{{cuts[i], cuts[i + 1]}, {}});
    for (int rank : group.sum->members()) {
      const Run other = range_of(rank);
      if (other.begin <= part.run.begin && other.end >= part.run.end) {
        part.ranks.push_back(rank);
      }
    }
  }
  return parts;
}

// What the ranks of this rank's sum group write of each parameter: all of it where they alone hold it.
std::vector<WrittenRun> runs_of_sums(const ParamStore& store, const Plan& plan) {
  struct Held {
    ParamGroup* group;
    const Param* param;
    std::vector<int> holders;
  };
  std::vector<Held> all;
  for (const auto& group : store.groups()) {
    for (const Param& p : group->params) {
      all.push_back({group.get(), &p, plan.holders(p.spec)});
    }
  }
  // An order that does not depend on how a rank's groups are made up.
  std::sort(all.begin(), all.end(),
            [](const Held& a, const Held& b) { return a.param->spec.name < b.param->spec.name; });
  Cutter cutter;
  for (const Held& held : all) {
    cutter.count(held.holders, held.param->elements());
  }
  std::vector<WrittenRun> found;
  for (const Held& held : all) {
    const std::vector<int>& members = held.group->sum->members();
    const auto in_sum = [&](int rank) { return std::find(members.begin(), members.end(), rank) != members.end(); };
    const Param& p = *held.param;
    for (const Run& run : cutter.next(held.holders, p.elements(), in_sum)) {
      found.push_back({held.group, &p, p.begin + run.begin, p.begin + run.end});
    }
  }
  return found;
}

}  // namespace

std::vector<WrittenRun> written_runs(const ParamStore& store, const Plan& plan, Group& world, Stream& stream) {
  const int self = plan.mesh().rank();
  const std::vector<OwnedRanges> owned = gather_owned_ranges(store, world, stream);
  // What this rank could write, and who else could.
  std::vector<std::pair<WrittenRun, const std::vector<int>*>> candidates;
  std::map<const ParamGroup*, std::vector<Shared>> parts;
  for (const auto& group : store.groups()) {
    parts[group.get()] = shared_parts(*group, owned, self);
  }
  Cutter cutter;
  for (const WrittenRun& run : runs_of_sums(store, plan)) {
    for (const Shared& part : parts.at(run.group)) {
      const std::int64_t begin = std::max(run.begin, part.run.begin), end = std::min(run.end, part.run.end);
      if (begin < end) {
        candidates.push_back({{run.group, run.param, begin, end}, &part.ranks});
        cutter.count(part.ranks, end - begin);
      }
    }
  }
  std::vector<WrittenRun> written;
  for (const auto& [run, ranks] : candidates) {
    for (const Run& mine : cutter.next(*ranks, run.end - run.begin, [&](int rank) { return rank == self; })) {
      written.push_back({run.group, run.param, run.begin + mine.begin, run.begin + mine.end});
    }
  }
  return written;
}

}  // namespace orthant
