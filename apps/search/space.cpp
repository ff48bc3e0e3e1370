#include "apps/search/space.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "apps/cost/memory.h"
#include "apps/cost/operations.h"

namespace orthant::search {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();

bool legal(const Problem& problem, const Candidate& candidate) {
  return refusal(problem, candidate).empty();
}

// Orders of the axes whose groups have other places than those of an order before them.
std::vector<std::uint8_t> distinct_orders(const Problem& problem, Candidate key) {
  std::vector<std::uint8_t> orders;
  std::set<Places> seen;
  for (std::uint8_t order = 0; order < all_orders().size(); ++order) {
    key.order = order;
    if (legal(problem, key) && seen.insert(places_of(problem, key)).second) {
      orders.push_back(order);
    }
  }
  return orders;
}

// Ranks that share cores are slower for it, or faster by no more than `together`.
double at_most(const cost::Machine& machine) {
  constexpr double rounding = 1 - 1e-9;
  return machine.cores.count > 0 ? rounding / std::max(1.0, machine.cores.together) : rounding;
}

double micro_batches_of(const Problem& problem, const Candidate& node) {
  return problem.base.global_batch / node.data / static_cast<double>(node.micro_batch);
}

std::int64_t sequences_of_rank(const Problem& problem, int data) {
  const std::int64_t common = common_batch(problem);
  return common % data == 0 ? common / data : 0;
}

}  // namespace

Candidate with(Candidate node, const Leaf& leaf) {
  node.schedule = leaf.schedule;
  node.chunks = leaf.chunks;
  node.zero = leaf.zero;
  node.host_states = leaf.host_states;
  return node;
}

std::int64_t common_batch(const Problem& problem) {
  std::int64_t common = 0;
  for (const std::int64_t sequences : problem.batches) {
    common = std::gcd(common, sequences);
  }
  return common;
}

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i == 0) {
      found.push_back(i);
      if (i != number / i) {
        found.push_back(number / i);
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<Candidate> keys_of(const Problem& problem) {
  std::vector<Candidate> keys;
  const std::int64_t ranks = problem.base.ranks;
  for (const std::int64_t tensor : divisors(ranks)) {
    for (const std::int64_t sequence : divisors(ranks / tensor)) {
      for (const std::int64_t pipeline : divisors(ranks / tensor / sequence)) {
        Candidate key;
        key.tensor = static_cast<int>(tensor);
        key.sequence = static_cast<int>(sequence);
        key.pipeline = static_cast<int>(pipeline);
        key.data = static_cast<int>(ranks / tensor / sequence / pipeline);
        const std::int64_t own = sequences_of_rank(problem, key.data);
        if (own == 0) {
          continue;
        }
        for (const bool folded : {false, true}) {
          for (const bool ulysses : {false, true}) {
            for (const std::int64_t expert : divisors(std::max(1, problem.model.experts))) {
              key.folded = folded;
              key.ulysses = ulysses;
              key.expert = static_cast<int>(expert);
              key.order = 0;
              key.micro_batch = 1;
              for (const std::int64_t micro_batch : divisors(own)) {  // the first with which the key is legal at all
                key.micro_batch = micro_batch;
                const std::vector<std::uint8_t> orders = distinct_orders(problem, key);
                for (const std::uint8_t order : orders) {
                  key.order = order;
                  keys.push_back(key);
                }
                if (!orders.empty()) {
                  break;
                }
              }
            }
          }
        }
      }
    }
  }
  return keys;
}

void for_each_node(const Problem& problem, const Candidate& key, const std::function<void(const Candidate&)>& visit) {
  const bool routed = problem.model.experts > 0;
  Candidate node = key;
  std::vector<Travel> travels;
  const int inside = places_of(problem, key)[4];
  for (const Travel travel : {Travel::at_once, Travel::in_parts, Travel::two_levels, Travel::two_levels_in_parts}) {
    const bool parts = travel == Travel::in_parts || travel == Travel::two_levels_in_parts;
    const bool levels = travel == Travel::two_levels || travel == Travel::two_levels_in_parts;
    if (travel == Travel::at_once ||
        (routed && key.expert > 1 && (!parts || problem.model.experts / key.expert % 2 == 0) &&
         (!levels || (inside > 1 && inside < key.expert)))) {
      travels.push_back(travel);
    }
  }
  for (const std::int64_t micro_batch : divisors(sequences_of_rank(problem, key.data))) {
    for (const bool sequence_parallel : {false, true}) {
      node.micro_batch = micro_batch;
      node.sequence_parallel = sequence_parallel;
      node.travel = Travel::at_once;
      if (!legal(problem, node)) {
        continue;
      }
      for (const cost::Recompute recompute :
           {cost::Recompute::none, cost::Recompute::activation, cost::Recompute::full}) {
        for (const Travel travel : travels) {
          node.recompute = recompute;
          node.travel = travel;
          visit(node);
        }
      }
    }
  }
}

const std::vector<Leaf>& Leaves::of(const Candidate& node) {
  const std::tuple key(node.pipeline, node.data, node.sequence, node.micro_batch);
  if (of_last_ != nullptr && key == last_) {
    return *of_last_;
  }
  const auto [entry, added] = known_.try_emplace(key);
  last_ = key;
  of_last_ = &entry->second;
  if (!added) {
    return entry->second;
  }
  Candidate plain;  // what the others ask does not depend on a leaf
  plain.pipeline = node.pipeline;
  plain.data = node.data;
  plain.sequence = node.sequence;
  plain.micro_batch = node.micro_batch;
  for (const Course schedule :
       {Course::one_forward_one_backward, Course::gpipe, Course::interleaved, Course::layered}) {
    const int most = schedule == Course::interleaved ? most_chunks : 1;
    for (int chunks = schedule == Course::interleaved ? 2 : 1; chunks <= most; ++chunks) {
      for (std::uint8_t zero = 0; zero <= 3; ++zero) {
        for (const bool host : {false, true}) {
          const Leaf leaf{schedule, chunks, zero, host};
          if (refused_leaf(problem_, with(plain, leaf)).empty()) {
            entry->second.push_back(leaf);
          }
        }
      }
    }
  }
  return entry->second;
}

std::vector<std::pair<Class, std::string>> refused_sizes(const Problem& problem) {
  std::vector<std::pair<Class, std::string>> refused;
  const auto ask = [&](Kind kind, std::int64_t value, const std::vector<Candidate>& tries) {
    std::string why;
    for (Candidate one : tries) {
      Problem alike = problem;
      alike.base.ranks = one.tensor * one.sequence * one.pipeline * one.data;
      for (const std::int64_t micro_batch : divisors(common_batch(problem))) {
        one.micro_batch = micro_batch;
        const std::string refused_for = refusal(alike, one);
        if (refused_for.empty()) {
          return;
        }
        why = why.empty() ? refused_for : why;
      }
    }
    refused.push_back({{kind, value}, why});
  };
  for (const std::int64_t value : divisors(problem.base.ranks)) {
    const int size = static_cast<int>(value);
    if (size == 1) {
      continue;
    }
    Candidate tensor, folded, ring, ulysses, pipeline, data;
    tensor.tensor = folded.tensor = ring.sequence = ulysses.sequence = pipeline.pipeline = data.data = size;
    folded.folded = ulysses.ulysses = true;
    ask(Kind::tensor, value, {tensor, folded});
    ask(Kind::sequence, value, {ring, ulysses});
    ask(Kind::pipeline, value, {pipeline});
    ask(Kind::data, value, {data});
  }
  return refused;
}

NodeBounds::NodeBounds(const Problem& problem) : problem_(problem) {
  const int all = problem.model.layers + problem.model.extra_layers;
  routed_ = cost::routed_blocks(problem.model, 0, all);
  dense_ = all - routed_;
}

const BlockTimes& NodeBounds::times_of(const Candidate& node, const Places& places) {
  std::uint64_t key = 0;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(node.tensor), static_cast<std::uint64_t>(node.sequence),
        static_cast<std::uint64_t>(node.expert), static_cast<std::uint64_t>(node.micro_batch),
        static_cast<std::uint64_t>(places[0]), static_cast<std::uint64_t>(places[1]),
        static_cast<std::uint64_t>(places[4]),
        static_cast<std::uint64_t>(node.folded) + 2 * node.ulysses + 4 * node.sequence_parallel +
            8 * static_cast<std::uint64_t>(node.recompute) + 32 * static_cast<std::uint64_t>(node.travel)}) {
    key = (key ^ part) * 0x9E3779B97F4A7C15ULL;
    key ^= key >> 29;
  }
  const auto [entry, added] = known_.try_emplace(key);
  BlockTimes& times = entry->second;
  if (added) {
    const cost::Layout layout = uncut_layout_of(problem_, node);
    // Of a recorded routing the most even one: no micro-batch is faster.
    const double busiest = problem_.routing_for(node.expert).recorded() ? 1 : problem_.routing.skew;
    if (dense_ > 0) {
      const cost::BlockSeconds block =
          cost::block_seconds(problem_.model, layout, problem_.machine, problem_.practice, false);
      times.dense_forward = block.forward.total();
      times.dense_backward = block.backward.total();
    }
    if (routed_ > 0) {
      const cost::BlockSeconds block =
          cost::block_seconds(problem_.model, layout, problem_.machine, problem_.practice, true, busiest);
      times.routed_forward = block.forward.total();
      times.routed_backward = block.backward.total();
    }
  }
  return times;
}

double NodeBounds::seconds(const Candidate& node, const Places& places) {
  const BlockTimes& times = times_of(node, places);
  const double work =
      dense_ * (times.dense_forward + times.dense_backward) + routed_ * (times.routed_forward + times.routed_backward);
  // The stage that works longest has its share of the blocks at least.
  return at_most(problem_.machine) * (micro_batches_of(problem_, node) * work / node.pipeline + problem_.practice.step);
}

// As step_bound(): a stage begins behind the first pieces of those before it, and they end behind it.
double NodeBounds::seconds(const Candidate& leaf) {
  const BlockTimes& times = times_of(leaf, places_of(problem_, leaf));
  const double dense = times.dense_forward + times.dense_backward;
  const double routed = times.routed_forward + times.routed_backward;
  const double count = micro_batches_of(problem_, leaf);
  double longest = 0, around = 0;
  for (const StageBlocks& stage : blocks_of(leaf.pipeline, leaf.chunks)) {
    longest = std::max(longest, around + count * (stage.dense * dense + stage.routed * routed));
    around += stage.first_dense * dense + stage.first_routed * routed;
  }
  return at_most(problem_.machine) * (longest + problem_.practice.step);
}

const std::vector<NodeBounds::StageBlocks>& NodeBounds::blocks_of(int pipeline, int chunks) {
  std::vector<StageBlocks>& stages = blocks_[{pipeline, chunks}];
  if (stages.empty()) {
    stages.resize(static_cast<std::size_t>(pipeline));
    Candidate cut;
    cut.pipeline = pipeline;
    cut.chunks = chunks;
    const std::vector<int> blocks = layout_of(problem_, cut).blocks_of_pieces(problem_.model.layers);
    int block = 0;
    for (std::size_t piece = 0; piece < blocks.size(); ++piece) {
      const int all = blocks[piece] + (piece + 1 == blocks.size() ? problem_.model.extra_layers : 0);
      const double routed = cost::routed_blocks(problem_.model, block, all);
      StageBlocks& stage = stages[piece % stages.size()];
      stage.routed += routed;
      stage.dense += all - routed;
      if (piece < stages.size()) {
        stage.first_routed = routed;
        stage.first_dense = all - routed;
      }
      block += all;
    }
  }
  return stages;
}

// Stage 2 holds less than 0 and 1. Stage 3 gathers whole blocks, which may be more than it shares out.
double NodeBounds::bytes(const Candidate& node, bool host_states) const {
  const double shared = problem_.has(Feature::zero) ? bytes(node, 3, host_states, false) : unbounded;
  return std::min(shared, bytes(node, problem_.has(Feature::zero) ? 2 : 0, host_states, false));
}

double NodeBounds::bytes(const Candidate& node, int zero, bool host_states, bool all_kept) const {
  const double count = micro_batches_of(problem_, node);
  const double ranks = static_cast<double>(node.data) * node.sequence;
  cost::Layout layout = uncut_layout_of(problem_, node);
  layout.zero = ranks > 1 ? zero : 0;
  layout.host_states = host_states;
  return cost::mean_memory(problem_.model, layout, all_kept ? count : 1);
}

}  // namespace orthant::search
