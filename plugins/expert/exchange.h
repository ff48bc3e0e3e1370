// All-to-all with variable counts between the ranks that share a layer's experts, in one leg or in two.
//
// Two legs (the hierarchical all-to-all of Tutel and DeepSpeed-MoE): first to the peer of the own node that has the
// place of the destination in its node, then across nodes, between ranks of one place. A rank then sends to nodes - 1
// peers of other nodes, and every message carries the rows of a whole node.
#pragma once

#include <orthant/plan.h>

#include <vector>

#include "blocks.h"

namespace orthant::expert {

// The ranks of the axis, `node_ranks` consecutive ones of them on each node.
struct Peers {
  Group* all = nullptr;     // for one leg, else:
  Group* node = nullptr;    // the ranks of the caller's node
  Group* across = nullptr;  // those of its place, one of each node
};

class Exchange final : public TokenExchange {
 public:
  // padded: every block has the same number of rows.
  Exchange(Peers peers, int chunks, bool padded) : peers_(peers), chunks_(chunks), padded_(padded) {}

  int chunks() const override { return chunks_; }
  bool equal_blocks() const override { return padded_; }
  ExchangePlan plan(const Tensor& rows_of_expert, Stream& s, const std::function<void()>& meanwhile) override;
  ExchangePlan plan_equal(std::int64_t experts, std::int64_t rows) override;
  void to_experts(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) override;
  void to_tokens(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) override;

 private:
  using Counts = std::vector<std::int64_t> ExchangePlan::*;
  // One all-to-all: blocks that leave and blocks that arrive, those for and from one member after another.
  struct Leg {
    Group* group;
    Counts leave, arrive;  // rows of each block
    std::vector<std::size_t> leave_order, arrive_order;
  };
  // Of the blocks of local experts [first, first + count) of `local`.
  std::vector<Leg> legs(std::size_t local, std::size_t first, std::size_t count) const;
  std::vector<Leg> legs_of(const ExchangePlan& plan, int chunk) const;
  Blocks by_expert(const ExchangePlan& plan, int chunk) const;  // (local expert, source rank)
  // rows, lying so -> to, in the wanted order, by all legs; each moves the blocks that it names.
  void move(const Tensor& to, const Blocks& wanted, const Tensor& rows, const Blocks& lying,
            const std::vector<Leg>& legs, const ExchangePlan& plan, Stream& s) const;
  int ranks() const;

  Peers peers_;
  int chunks_;
  bool padded_;
};

}  // namespace orthant::expert
