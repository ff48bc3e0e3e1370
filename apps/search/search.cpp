#include "apps/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <tuple>

#include <orthant/error.h>

#include "apps/search/classes.h"
#include "apps/search/space.h"
#include "apps/search/timing.h"

namespace orthant::search {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr int frontier_parts = 16;

// A node of the tree, small: a search of 16,384 ranks has millions.
struct Node {
  float seconds = 0;  // that it takes at least, rounded down
  std::uint32_t key = 0, micro_batch = 1;
  bool sequence_parallel = false;
  Travel travel = Travel::at_once;
  cost::Recompute recompute = cost::Recompute::none;
  bool operator<(const Node& other) const {
    const auto all = [](const Node& n) {
      return std::tie(n.seconds, n.key, n.micro_batch, n.sequence_parallel, n.travel, n.recompute);
    };
    return all(*this) < all(other);
  }
};

Node node_of(const Candidate& of, std::size_t key, double seconds) {
  return {std::nextafter(static_cast<float>(seconds), 0.0F),
          static_cast<std::uint32_t>(key),
          static_cast<std::uint32_t>(of.micro_batch),
          of.sequence_parallel,
          of.travel,
          of.recompute};
}

Candidate candidate_of(const Node& node, const std::vector<Candidate>& keys) {
  Candidate candidate = keys[node.key];
  candidate.micro_batch = node.micro_batch;
  candidate.sequence_parallel = node.sequence_parallel;
  candidate.travel = node.travel;
  candidate.recompute = node.recompute;
  return candidate;
}

// What the keys of one thread came to.
struct Bounded {
  std::vector<Node> nodes;  // that may fit
  Counts counts;
  std::map<Cell, std::uint64_t> cells;
  std::map<Class, double> least;  // bytes
  Candidate smallest;
  double smallest_bytes = never;
};

// The first look at the nodes of some keys: what each takes and needs at least.
void bound_nodes(const Problem& problem, const std::vector<Candidate>& keys, std::size_t first, std::size_t last,
                 Bounded& to) {
  NodeBounds bounds(problem);
  Leaves leaves(problem);
  const bool host = problem.has(Feature::host_states);
  Candidate before;
  double bytes = 0;
  for (std::size_t k = first; k < last; ++k) {
    double least = never;
    const Places places = places_of(problem, keys[k]);
    for_each_node(problem, keys[k], [&](const Candidate& node) {
      const std::size_t count = leaves.of(node).size();
      const double seconds = bounds.seconds(node, places);
      before.order = node.order;  // neither order nor travel changes bytes
      before.travel = node.travel;
      bytes = bytes > 0 && node == before ? bytes : bounds.bytes(node, host);
      before = node;
      to.counts.legal += count;
      to.cells[cell_of(seconds, bytes)] += count;
      for (const Class& of : classes_of_work(node)) {
        double& own = to.least.try_emplace(of, never).first->second;
        own = std::min(own, bytes);
      }
      least = std::min(least, bytes);
      if (bytes < to.smallest_bytes) {
        to.smallest_bytes = bytes;
        to.smallest = node;
      }
      if (bytes > problem.memory) {
        to.counts.too_large_by_bound += count;
      } else {
        to.nodes.push_back(node_of(node, k, seconds));
      }
    });
    for (const Class& of : classes_of_key(keys[k])) {
      double& own = to.least.try_emplace(of, never).first->second;
      own = std::min(own, least);
    }
  }
}

// The best of classes, by small numbers.
class Bests {
 public:
  std::size_t number_of(const Class& of) {
    const auto [found, added] = numbers_.try_emplace(of, bests_.size());
    if (added) {
      bests_.push_back(never);
      timed_.emplace_back();
    }
    return found->second;
  }
  bool beats(std::size_t number, double seconds) const { return seconds <= bests_[number]; }
  // None of its layouts fits: it has no best.
  void give_up(std::size_t number) { bests_[number] = 0; }
  void keep(std::size_t number, const Timed& found) {
    if (!timed_[number] || better(found, *timed_[number])) {
      timed_[number] = found;
      bests_[number] = found.time.seconds;
    }
  }
  const std::optional<Timed>& of(const Class& one) const { return timed_[numbers_.at(one)]; }

 private:
  std::map<Class, std::size_t> numbers_;
  std::vector<double> bests_;
  std::vector<std::optional<Timed>> timed_;
};

class Search {
 public:
  Search(const Problem& problem, const Options& options)
      : problem_(problem), options_(options), bounds_(problem), leaves_(problem), clocks_(problem) {}

  Answer run() {
    keys_ = keys_of(problem_);
    answer_.refused = refused_sizes(problem_);
    if (keys_.empty()) {
      throw ConfigError(why_none());
    }
    bound_all();
    number_classes();
    for (const Node& node : nodes_) {
      look_at(node);
    }
    finish();
    return std::move(answer_);
  }

 private:
  std::string why_none() const {
    std::string text = fmt::format(
        "no layout of {} ranks is possible: no axes of so many ranks together share this model and its "
        "batch out",
        problem_.base.ranks);
    for (const auto& [size, why] : answer_.refused) {
      text += fmt::format("\n  {}: {}", text_of(size), why);
    }
    return text;
  }

  void bound_all() {
    const std::size_t threads = static_cast<std::size_t>(std::max(1, options_.threads));
    std::vector<Bounded> found(threads);
    std::vector<std::thread> running;
    for (std::size_t t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        bound_nodes(problem_, keys_, keys_.size() * t / threads, keys_.size() * (t + 1) / threads, found[t]);
      });
    }
    for (std::thread& thread : running) {
      thread.join();
    }
    answer_.smallest_bytes = never;
    for (Bounded& part : found) {
      nodes_.insert(nodes_.end(), part.nodes.begin(), part.nodes.end());
      part.nodes = {};
      answer_.counts.legal += part.counts.legal;
      answer_.counts.too_large_by_bound += part.counts.too_large_by_bound;
      for (const auto& [cell, count] : part.cells) {
        answer_.bounded[cell] += count;
      }
      for (const auto& [of, least] : part.least) {
        ClassBest& best = answer_.classes[of];
        best.least = best.least == 0 ? least : std::min(best.least, least);
      }
      if (part.smallest_bytes < answer_.smallest_bytes) {
        answer_.smallest_bytes = part.smallest_bytes;
        answer_.smallest = part.smallest;
      }
    }
    std::sort(nodes_.begin(), nodes_.end());
  }

  void number_classes() {
    for (const Candidate& key : keys_) {
      std::vector<std::size_t>& numbers = of_keys_.emplace_back();
      for (const Class& of : classes_of_key(key)) {
        numbers.push_back(bests_.number_of(of));
      }
    }
    for (const auto& [of, best] : answer_.classes) {
      if (best.least > problem_.memory) {
        bests_.give_up(bests_.number_of(of));
      }
    }
  }

  // Numbers of the classes that a node has beside its key's.
  const std::vector<std::size_t>& numbers_of_work(const Node& node, const Candidate& candidate) {
    const bool several = candidate.tensor > 1, travels = candidate.expert > 1;
    auto& numbers =
        of_work_[{node.micro_batch, node.sequence_parallel + 2 * static_cast<int>(node.travel) +
                                        8 * static_cast<int>(node.recompute) + 32 * several + 64 * travels}];
    if (numbers.empty()) {
      for (const Class& of : classes_of_work(candidate)) {
        numbers.push_back(bests_.number_of(of));
      }
    }
    return numbers;
  }

  struct NumberedLeaf {
    Leaf leaf;
    std::vector<std::size_t> numbers;
  };
  const std::vector<NumberedLeaf>& leaves_of(const Candidate& node) {
    const std::vector<Leaf>& leaves = leaves_.of(node);
    std::vector<NumberedLeaf>& numbered = of_leaves_[&leaves];
    if (numbered.empty()) {
      for (const Leaf& leaf : leaves) {
        numbered.push_back({leaf, {}});
        for (const Class& of : classes_of_leaf(leaf)) {
          numbered.back().numbers.push_back(bests_.number_of(of));
        }
      }
    }
    return numbered;
  }

  bool beats_one(const std::vector<std::size_t>& classes, double seconds) const {
    return std::any_of(classes.begin(), classes.end(),
                       [&](std::size_t number) { return bests_.beats(number, seconds); });
  }
  // It may be among the best few, or the best of a class of its node or of its own.
  bool may_win(const std::vector<std::size_t>& node, const std::vector<std::size_t>& leaf, double seconds) const {
    return seconds <= top_ || beats_one(node, seconds) || beats_one(leaf, seconds);
  }

  // The part of the memory, in sixteenths, that it fits into.
  int part_of(double bytes) const {
    return std::clamp(static_cast<int>(std::ceil(bytes / problem_.memory * frontier_parts)), 1, frontier_parts);
  }
  bool on_frontier(double bytes, double seconds) const {
    for (int part = part_of(bytes); part <= frontier_parts; ++part) {
      const auto& best = frontier_[static_cast<std::size_t>(part - 1)];
      if (!best || seconds <= best->time.seconds) {
        return true;
      }
    }
    return false;
  }

  void look_at(const Node& node) {
    const Candidate candidate = candidate_of(node, keys_);
    const std::vector<NumberedLeaf>& leaves = leaves_of(candidate);
    classes_ = of_keys_[node.key];
    const std::vector<std::size_t>& more = numbers_of_work(node, candidate);
    classes_.insert(classes_.end(), more.begin(), more.end());
    const bool wins = node.seconds <= top_ || beats_one(classes_, node.seconds);
    std::array<double, 16> least = {};  // bytes by ZeRO stage, place of states and what is kept; 0: not yet asked
    for (const NumberedLeaf& one : leaves) {
      const bool may = wins || beats_one(one.numbers, node.seconds) || frontier_slowest_ >= node.seconds;
      if (!may) {
        ++answer_.counts.slower_by_work;
        continue;
      }
      const bool all_kept = one.leaf.schedule == Course::gpipe || one.leaf.schedule == Course::layered;
      double& bytes = least[one.leaf.zero + 4U * one.leaf.host_states + 8U * all_kept];
      bytes = bytes > 0 ? bytes : bounds_.bytes(candidate, one.leaf.zero, one.leaf.host_states, all_kept);
      if (bytes > problem_.memory) {
        ++answer_.counts.too_large_by_bound;
        continue;
      }
      const Candidate leaf = with(candidate, one.leaf);
      const double seconds = bounds_.seconds(leaf);
      if (!may_win(classes_, one.numbers, seconds) && !on_frontier(bytes, seconds)) {
        ++answer_.counts.slower_by_work;
      } else {
        look_at(leaf, one.numbers);
      }
    }
  }

  // A leaf of the node whose classes are in classes_.
  void look_at(const Candidate& candidate, const std::vector<std::size_t>& own) {
    Timed found{candidate, {}, {}};
    const cost::Layout layout = layout_of(problem_, candidate);
    found.memory = memory_of(problem_, layout);
    const double bytes = found.memory.total();
    if (bytes > problem_.memory || found.memory.host > host_memory()) {
      ++answer_.counts.too_large;
      return;
    }
    const cost::Routing& routing = problem_.routing_for(candidate.expert);
    const double bound = cost::step_bound(problem_.model, layout, problem_.machine, problem_.practice, routing);
    if (!may_win(classes_, own, bound) && !on_frontier(bytes, bound)) {
      ++answer_.counts.slower_by_bound;
      return;
    }
    found.time =
        cost::step_time(problem_.model, layout, problem_.machine, problem_.practice, routing, clocks_.of(layout));
    ++answer_.counts.timed;
    answer_.timed.emplace_back(found.time.seconds, bytes);
    keep(found, classes_);
    keep(found, own);
    keep(found);
  }

  double slowest_of_frontier() const {
    double slowest = 0;
    for (int part = part_of(answer_.smallest_bytes); part <= frontier_parts; ++part) {
      const auto& best = frontier_[static_cast<std::size_t>(part - 1)];
      slowest = std::max(slowest, best ? best->time.seconds : never);
    }
    return slowest;
  }

  double host_memory() const { return problem_.machine.host.memory > 0 ? problem_.machine.host.memory : never; }

  void keep(const Timed& found, const std::vector<std::size_t>& classes) {
    for (const std::size_t number : classes) {
      bests_.keep(number, found);
    }
  }
  void keep(const Timed& found) {
    for (int part = part_of(found.memory.total()); part <= frontier_parts; ++part) {
      auto& best = frontier_[static_cast<std::size_t>(part - 1)];
      if (!best || better(found, *best)) {
        best = found;
      }
    }
    frontier_slowest_ = slowest_of_frontier();
    std::vector<Timed>& best = answer_.best;
    best.insert(std::upper_bound(best.begin(), best.end(), found, better), found);
    if (best.size() > options_.top) {
      best.pop_back();
    }
    top_ = best.size() < options_.top ? never : best.back().time.seconds;
  }

  void finish() {
    for (const auto& [leaves, numbered] : of_leaves_) {
      for (const Leaf& leaf : *leaves) {
        for (const Class& of : classes_of_leaf(leaf)) {  // what they need at least is not known
          answer_.classes.try_emplace(of, ClassBest{{}, false, answer_.smallest_bytes});
        }
      }
    }
    for (auto& [of, best] : answer_.classes) {
      bests_.number_of(of);
      if (const std::optional<Timed>& found = bests_.of(of)) {
        best.best = *found;
        best.fits = true;
      }
    }
    for (const auto& best : frontier_) {
      if (best && (answer_.frontier.empty() || better(*best, answer_.frontier.back()))) {
        answer_.frontier.push_back(*best);
      }
    }
  }

  const Problem& problem_;
  const Options& options_;
  NodeBounds bounds_;
  Leaves leaves_;
  Clocks clocks_;
  std::vector<Candidate> keys_;
  std::vector<std::vector<std::size_t>> of_keys_;  // numbers of each key's classes
  std::vector<Node> nodes_;
  Bests bests_;
  std::array<std::optional<Timed>, frontier_parts> frontier_;
  double top_ = never, frontier_slowest_ = never;  // seconds of the last of the best few, of the frontier's slowest
  std::vector<std::size_t> classes_;               // of the node that is looked at
  std::map<std::pair<std::uint32_t, int>, std::vector<std::size_t>> of_work_;
  std::map<const std::vector<Leaf>*, std::vector<NumberedLeaf>> of_leaves_;
  Answer answer_;
};

}  // namespace

Answer search(const Problem& problem, const Options& options) {
  return Search(problem, options).run();
}

}  // namespace orthant::search
