#include "plugins/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

namespace orthant {
namespace {

constexpr std::size_t short_word = 40;  // tokens up to which looking at every pair is the faster way

// The heap's top is the pair to merge next.
bool later(const MergeWork::Candidate& a, const MergeWork::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

MergeTable::MergeTable(std::size_t pairs)
    : slots_(std::bit_ceil(std::max<std::size_t>(2 * pairs, 2))), mask_(slots_.size() - 1) {}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (slots_[slot].key != empty && slots_[slot].key != key) {
    slot = (slot + 1) & mask_;
  }
  slots_[slot] = {key, merge};
}

void MergeTable::apply(std::vector<std::int32_t>& tokens, MergeWork& work) const {
  if (tokens.size() > short_word) {
    apply_to_long(tokens, work);
  } else if (tokens.size() > 1) {
    apply_to_short(tokens, work);
  }
}

void MergeTable::apply_to_short(std::vector<std::int32_t>& tokens, MergeWork& work) const {
  std::vector<Merge>& pairs = work.pairs;
  pairs.resize(tokens.size() - 1);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = find(tokens[i], tokens[i + 1]);
  }
  while (!pairs.empty()) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < pairs.size(); ++i) {
      best = pairs[i].rank < pairs[best].rank ? i : best;
    }
    if (!pairs[best].exists()) {
      return;
    }
    tokens[best] = pairs[best].id;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) {
      pairs[best - 1] = find(tokens[best - 1], tokens[best]);
    }
    if (best < pairs.size()) {
      pairs[best] = find(tokens[best], tokens[best + 1]);
    }
  }
}

void MergeTable::apply_to_long(std::vector<std::int32_t>& tokens, MergeWork& work) const {
  const std::int32_t n = static_cast<std::int32_t>(tokens.size());
  constexpr std::int32_t gone = -1;  // ids are not negative
  work.links.resize(tokens.size());
  work.heap.clear();
  for (std::int32_t i = 0; i < n; ++i) {
    work.links[static_cast<std::size_t>(i)] = {i - 1, i + 1 < n ? i + 1 : -1};
  }
  const auto token = [&](std::int32_t at) -> std::int32_t& { return tokens[static_cast<std::size_t>(at)]; };
  const auto link = [&](std::int32_t at) -> MergeWork::Link& { return work.links[static_cast<std::size_t>(at)]; };
  const auto consider = [&](std::int32_t at) {
    if (at < 0 || link(at).behind < 0) {
      return;
    }
    if (const Merge merge = find(token(at), token(link(at).behind)); merge.exists()) {
      work.heap.push_back({merge.rank, at, merge.id});
      std::push_heap(work.heap.begin(), work.heap.end(), later);
    }
  };
  for (std::int32_t i = 0; i + 1 < n; ++i) {
    consider(i);
  }
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), later);
    const MergeWork::Candidate top = work.heap.back();
    work.heap.pop_back();
    const std::int32_t behind = token(top.at) == gone ? -1 : link(top.at).behind;
    if (behind < 0) {
      continue;
    }
    const Merge now = find(token(top.at), token(behind));
    if (!now.exists() || now.id != top.id || now.rank != top.rank) {
      continue;  // one of the two has been merged since
    }
    token(top.at) = top.id;
    token(behind) = gone;
    link(top.at).behind = link(behind).behind;
    if (link(behind).behind >= 0) {
      link(link(behind).behind).before = top.at;
    }
    consider(link(top.at).before);
    consider(top.at);
  }
  std::erase(tokens, gone);
}

}  // namespace orthant
