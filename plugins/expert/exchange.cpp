#include "exchange.h"

#include <algorithm>
#include <numeric>

namespace orthant::expert {

// Blocks are numbered (rank, local expert), that of the destination on the way out and of the source on arrival;
// between two legs (place of the source in its node, node of the destination, local expert).

int Exchange::ranks() const {
  return peers_.all != nullptr ? peers_.all->size() : peers_.node->size() * peers_.across->size();
}

std::vector<Exchange::Leg> Exchange::legs(std::size_t local, std::size_t first, std::size_t count) const {
  auto add = [&](std::vector<std::size_t>& order, std::size_t outer) {
    for (std::size_t e = first; e < first + count; ++e) {
      order.push_back(outer * local + e);
    }
  };
  std::vector<std::size_t> by_rank;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks()); ++rank) {
    add(by_rank, rank);
  }
  if (peers_.all != nullptr) {
    return {{peers_.all, &ExchangePlan::send, &ExchangePlan::receive, by_rank, by_rank}};
  }
  const std::size_t places = static_cast<std::size_t>(peers_.node->size());
  const std::size_t nodes = static_cast<std::size_t>(peers_.across->size());
  Leg within{peers_.node, &ExchangePlan::send, &ExchangePlan::own, {}, {}};
  Leg across{peers_.across, &ExchangePlan::own, &ExchangePlan::receive, {}, by_rank};
  for (std::size_t place = 0; place < places; ++place) {
    for (std::size_t node = 0; node < nodes; ++node) {
      add(within.leave_order, node * places + place);
      add(within.arrive_order, place * nodes + node);
    }
  }
  for (std::size_t node = 0; node < nodes; ++node) {
    for (std::size_t place = 0; place < places; ++place) {
      add(across.leave_order, place * nodes + node);
    }
  }
  return {within, across};
}

std::vector<Exchange::Leg> Exchange::legs_of(const ExchangePlan& plan, int chunk) const {
  const std::size_t local = plan.local.size(), count = local / static_cast<std::size_t>(chunks_);
  return legs(local, static_cast<std::size_t>(chunk) * count, count);
}

Blocks Exchange::by_expert(const ExchangePlan& plan, int chunk) const {
  const std::size_t local = plan.local.size(), count = local / static_cast<std::size_t>(chunks_);
  const std::size_t first = static_cast<std::size_t>(chunk) * count;
  Blocks blocks{plan.receive, {}};
  for (std::size_t e = first; e < first + count; ++e) {
    for (std::size_t block = e; block < plan.receive.size(); block += local) {
      blocks.order.push_back(block);
    }
  }
  return blocks;
}

namespace {

// Where plan.receive says enough: rows of each local expert.
void add_up(ExchangePlan& plan, std::size_t local) {
  plan.local.assign(local, 0);
  for (std::size_t i = 0; i < plan.receive.size(); ++i) {
    plan.local[i % local] += plan.receive[i];
  }
}

}  // namespace

ExchangePlan Exchange::plan_equal(std::int64_t experts, std::int64_t rows) {
  const std::size_t blocks = static_cast<std::size_t>(experts), local = blocks / static_cast<std::size_t>(ranks());
  ExchangePlan plan;
  plan.send.assign(blocks, rows);
  for (const Leg& leg : legs(local, 0, local)) {
    plan.*leg.arrive = plan.send;
  }
  add_up(plan, local);
  return plan;
}

ExchangePlan Exchange::plan(const Tensor& rows_of_expert, Stream& s, const std::function<void()>& meanwhile) {
  const std::int64_t experts = rows_of_expert.elements();
  const std::size_t blocks = static_cast<std::size_t>(experts), local = blocks / static_cast<std::size_t>(ranks());
  const std::vector<Leg> all = legs(local, 0, local);
  // Counts stay on the device from leg to leg, and are read once: row i is what there is before leg i.
  const Tensor counts = s.device().empty(DType::i32, {static_cast<std::int64_t>(all.size()) + 1, experts});
  const auto row = [&](std::size_t i) { return counts.rows(static_cast<std::int64_t>(i), 1).view({experts}); };
  s.copy(row(0), rows_of_expert);
  std::vector<std::int64_t> place(blocks);  // of each block in its row
  std::iota(place.begin(), place.end(), std::int64_t{0});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Leg& leg = all[i];
    std::vector<RowRun> runs;
    for (std::size_t block : leg.leave_order) {
      runs.push_back({place[block], static_cast<std::int64_t>(runs.size()), 1});
    }
    const Tensor leaving = s.device().empty(DType::i32, {experts});
    s.copy_rows(leaving, row(i), runs);
    const std::vector<std::int64_t> each(leg.group->size(), experts / leg.group->size());
    leg.group->all_to_all(row(i + 1), each, leaving, each, s);
    for (std::size_t at = 0; at < blocks; ++at) {
      place[leg.arrive_order[at]] = static_cast<std::int64_t>(at);
    }
  }
  meanwhile();
  std::vector<std::int32_t> read(counts.elements());
  s.download(read.data(), counts);

  ExchangePlan plan;
  plan.send.assign(read.begin(), read.begin() + experts);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<std::int64_t>& arrived = plan.*all[i].arrive;
    arrived.resize(blocks);
    for (std::size_t at = 0; at < blocks; ++at) {
      arrived[all[i].arrive_order[at]] = read[(i + 1) * blocks + at];
    }
  }
  add_up(plan, local);
  return plan;
}

namespace {

// All blocks, in the order of their numbers: packed rows.
Blocks packed(const ExchangePlan& plan) {
  Blocks blocks{plan.send, std::vector<std::size_t>(plan.send.size())};
  std::iota(blocks.order.begin(), blocks.order.end(), std::size_t{0});
  return blocks;
}

// `rows` in another order; itself where that is the order it has.
Tensor ordered(const Tensor& rows, const Blocks& has, const Blocks& wanted, Stream& s) {
  if (has.order == wanted.order) {
    return rows;
  }
  const Tensor out = s.device().empty(rows.dtype(), {wanted.total(), rows.dim(1)});
  copy_blocks(out, wanted, rows, has, s);
  return out;
}

}  // namespace

void Exchange::move(const Tensor& to, const Blocks& wanted, const Tensor& rows, const Blocks& lying,
                    const std::vector<Leg>& legs, const ExchangePlan& plan, Stream& s) const {
  Tensor here = rows;
  Blocks lie = lying;
  for (const Leg& leg : legs) {
    const Blocks leaving{plan.*leg.leave, leg.leave_order}, arriving{plan.*leg.arrive, leg.arrive_order};
    const Tensor out = ordered(here, lie, leaving, s);
    // At once to where it shall be, if that is the order in which it arrives.
    here = &leg == &legs.back() && wanted.order == arriving.order
               ? to
               : s.device().empty(to.dtype(), {arriving.total(), to.dim(1)});
    const int members = leg.group->size();
    leg.group->all_to_all(here, arriving.by_member(members), out, leaving.by_member(members), s);
    lie = arriving;
  }
  if (wanted.order != lie.order) {
    copy_blocks(to, wanted, here, lie, s);
  }
}

void Exchange::to_experts(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) {
  move(to, by_expert(plan, chunk), rows, packed(plan), legs_of(plan, chunk), plan, s);
}

void Exchange::to_tokens(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) {
  std::vector<Leg> legs = legs_of(plan, chunk);
  std::reverse(legs.begin(), legs.end());
  for (Leg& leg : legs) {
    std::swap(leg.leave, leg.arrive);
    std::swap(leg.leave_order, leg.arrive_order);
  }
  move(to, packed(plan), rows, by_expert(plan, chunk), legs, plan, s);
}

}  // namespace orthant::expert
