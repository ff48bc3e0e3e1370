// What a collective costs on links of several classes: messages times latency plus bytes over bandwidth.
//
// The model is Hockney's (a message of n bytes takes latency + n / bandwidth; every rank sends and receives one message
// at a time), the algorithms those of Thakur, Rabenseifner and Gropp (IJHPCA 2005), Sanders, Speck and Traeff (double
// trees, Parallel Computing 2009), and Jain and Sabharwal (2-D tori, ICS 2010). `bytes` is always what one rank holds
// of the whole: the sum's bytes in an all-reduce, the gathered bytes in an all-gather, all that one rank sends out (its
// own part with it) in an all-to-all.
//
// Thread safety: pure functions.
#pragma once

#include "apps/cost/machine.h"

namespace orthant::cost {

// One class of links as a collective sees it, after realisation and contention.
struct Link {
  double bandwidth = 1;  // bytes/s of one rank, in one direction
  double latency = 0;    // s
  bool reduces = false;
  double sums = 1, exchanges = 1;  // as LinkClass's
};

// Ranks that exchange: `inner` of them in each node, `size` in all. `far` is unused where size == inner.
struct Group {
  int size = 1;
  int inner = 1;
  Link near, far;
  int nodes() const { return size / inner; }
};

// `size` ranks, `stride` apart, on a machine whose ranks are filled node by node. Groups beside it exchange at the same
// time: those of one node share its network evenly, so that a rank has its own part of it.
// REQUIRES: size, stride > 0.
Group group_of(const Machine& machine, int size, int stride);
Group group_of(const Machine& machine, const Spans& spans);

enum class Algorithm { ring, halving_doubling, double_tree, hierarchical, in_network };

// Errors of all: none; a group of one costs nothing.
double all_reduce(Algorithm algorithm, const Group& group, double bytes);
double all_reduce(const Group& group, double bytes);  // the best of them, as libraries choose
double reduce_scatter(const Group& group, double bytes);
double all_gather(const Group& group, double bytes);

// Over rows x columns ranks. On a mesh the ends of a line have no link between them: what a ring sends from the last to
// the first passes through all others, in the direction that is free.
double grid_all_reduce(int rows, int columns, bool torus, const Link& link, double bytes);

// `busiest`: the slowest rank's bytes over the mean.
double all_to_all(const Group& group, double bytes, double busiest = 1);  // one level: to each other rank
// Two levels: across nodes, then inside them. far_part: of the bytes that must travel across, where a row that several
// ranks of a node want is sent there once.
double all_to_all_two_level(const Group& group, double bytes, double busiest = 1, double far_part = 1);

double send(const Group& neighbours, double bytes);  // from one rank to the next one of a group

}  // namespace orthant::cost
