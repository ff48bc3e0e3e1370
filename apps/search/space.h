// The layouts of a search as a tree: first the axes and their order (a key), then what changes the work of a block (a
// node), then what does not (a leaf). Internal to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "apps/search/candidate.h"
#include "apps/search/search.h"

namespace orthant::search {

// What a leaf adds to a node.
struct Leaf {
  Course schedule = Course::one_forward_one_backward;
  int chunks = 1;
  std::uint8_t zero = 0;
  bool host_states = false;
};
Candidate with(Candidate node, const Leaf& leaf);

inline constexpr int most_chunks = 8;

std::vector<std::int64_t> divisors(std::int64_t number);  // in order

std::int64_t common_batch(const Problem& problem);  // what divides each size of the batch

// All keys: axes, experts, order; a micro-batch of one, nothing else chosen. Of orders with the same places the first.
std::vector<Candidate> keys_of(const Problem& problem);
// Sizes of axes that divide the ranks and that the program takes in no layout.
std::vector<std::pair<Class, std::string>> refused_sizes(const Problem& problem);
// All nodes of a key.
void for_each_node(const Problem& problem, const Candidate& key, const std::function<void(const Candidate&)>& visit);

// Leaves of nodes; those of nodes that ask alike are found once.
class Leaves {
 public:
  explicit Leaves(const Problem& problem) : problem_(problem) {}
  const std::vector<Leaf>& of(const Candidate& node);

 private:
  const Problem& problem_;
  std::map<std::tuple<int, int, int, std::int64_t>, std::vector<Leaf>> known_;
  std::tuple<int, int, int, std::int64_t> last_ = {};
  const std::vector<Leaf>* of_last_ = nullptr;
};

// Seconds of the passes of one dense and one routed block.
struct BlockTimes {
  double dense_forward = 0, dense_backward = 0, routed_forward = 0, routed_backward = 0;
};

// Bounds below a node: times and bytes that none of its leaves is below.
class NodeBounds {
 public:
  explicit NodeBounds(const Problem& problem);
  double seconds(const Candidate& node, const Places& places);  // places of its key
  // Of one leaf: with what stages wait for, where blocks are cut as it cuts them.
  double seconds(const Candidate& leaf);
  double bytes(const Candidate& node, bool host_states) const;  // host_states: some leaves have them there
  // Of leaves with this ZeRO stage and these states. all_kept: of those that keep all micro-batches.
  double bytes(const Candidate& node, int zero, bool host_states, bool all_kept) const;

 private:
  // Blocks of a stage, and those of its first chunk.
  struct StageBlocks {
    double dense = 0, routed = 0, first_dense = 0, first_routed = 0;
  };
  const BlockTimes& times_of(const Candidate& node, const Places& places);
  const std::vector<StageBlocks>& blocks_of(int pipeline, int chunks);

  const Problem& problem_;
  double dense_ = 0, routed_ = 0;  // blocks
  std::map<std::pair<int, int>, std::vector<StageBlocks>> blocks_;
  std::unordered_map<std::uint64_t, BlockTimes> known_;
};

}  // namespace orthant::search
