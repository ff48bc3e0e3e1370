// dispatch_plan against its definition in the words of Thrust: sorts, scans and reductions by key. Larger problems than
// the oracle's, which compares every choice with every other one.
//
// Compiled as C++ Thrust runs on the CPU; as CUDA (positions_gpu.cu) on the GPU.
#include <gtest/gtest.h>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/gather.h>
#include <thrust/host_vector.h>
#include <thrust/iterator/constant_iterator.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <algorithm>
#include <string>

#include "tests/router/problems.h"

namespace orthant::test {
namespace {

template <class T>
using Vector = thrust::device_vector<T>;

struct Plan {
  Values row, source, count, dropped, offset;
};

template <class T>
Vector<T> on_device(const Values& values) {
  const thrust::host_vector<T> host(values.begin(), values.end());
  return host;
}
Values on_host(const Vector<int>& values) {
  const thrust::host_vector<int> host = values;
  return {host.begin(), host.end()};
}

// expert, weight [T, K]; the choices of a token that is not there have expert -1.
Plan plan_of(const Values& expert, const Values& weight, const Problem& q) {
  const int experts = static_cast<int>(q.config.experts);
  const std::size_t top_k = static_cast<std::size_t>(q.config.top_k);
  const bool first_choices_first = q.kind == Kind::gshard;
  // Of each choice that was made: the group's expert it is for, and how early it is seated (less is earlier).
  Values made, piece, late;
  for (std::size_t choice = 0; choice < expert.size(); ++choice) {
    if (expert[choice] >= 0) {
      const std::int64_t group = q.group_of(static_cast<std::int64_t>(choice / top_k));
      const double k = static_cast<double>(choice % top_k);
      made.push_back(static_cast<double>(choice));
      piece.push_back(static_cast<double>(group) * experts + expert[choice]);
      late.push_back(q.config.drop_policy == DropPolicy::position ? k
                     : first_choices_first                        ? 2 * k - weight[choice]
                                                                  : -weight[choice]);
    }
  }
  Values seats_of_piece;
  for (std::int64_t group = 0; group < q.groups(); ++group) {
    const std::int64_t seats = q.numerator == 0 ? q.tokens : oracle::capacity(q, q.valid_in(group));
    seats_of_piece.insert(seats_of_piece.end(), static_cast<std::size_t>(experts), static_cast<double>(seats));
  }

  // Choices in the order of their pieces, each piece's in the order of seating: a choice is kept if fewer than the
  // seats come before it in its piece.
  Vector<int> choice = on_device<int>(made), of_piece = on_device<int>(piece);
  Vector<double> lateness = on_device<double>(late);
  Vector<int> order(choice.size());
  thrust::sequence(order.begin(), order.end());
  thrust::stable_sort_by_key(lateness.begin(), lateness.end(), order.begin());
  Vector<int> sorted_piece(order.size()), sorted_choice(order.size()), rank(order.size()), seats(order.size());
  thrust::gather(order.begin(), order.end(), of_piece.begin(), sorted_piece.begin());
  thrust::gather(order.begin(), order.end(), choice.begin(), sorted_choice.begin());
  thrust::stable_sort_by_key(sorted_piece.begin(), sorted_piece.end(), sorted_choice.begin());
  thrust::exclusive_scan_by_key(sorted_piece.begin(), sorted_piece.end(), thrust::make_constant_iterator(1),
                                rank.begin());
  const Vector<int> seats_of = on_device<int>(seats_of_piece);
  thrust::gather(sorted_piece.begin(), sorted_piece.end(), seats_of.begin(), seats.begin());
  const Values ranks = on_host(rank), limits = on_host(seats), choices = on_host(sorted_choice);
  Values kept, of_expert;
  Plan plan;
  plan.dropped.assign(experts, 0);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const double e = expert[choices[i]];
    if (ranks[i] < limits[i]) {
      kept.push_back(choices[i]);
      of_expert.push_back(e);
    } else {
      plan.dropped[e] += 1;
    }
  }

  // Packed rows: by choice, then stably by expert.
  Vector<int> source = on_device<int>(kept), key = on_device<int>(of_expert);
  thrust::stable_sort_by_key(source.begin(), source.end(), key.begin());
  thrust::stable_sort_by_key(key.begin(), key.end(), source.begin());
  Vector<int> row(expert.size(), -1), number(source.size());
  thrust::sequence(number.begin(), number.end());
  thrust::scatter(number.begin(), number.end(), source.begin(), row.begin());
  Vector<int> with_rows(source.size()), rows(source.size());
  const auto ends =
      thrust::reduce_by_key(key.begin(), key.end(), thrust::make_constant_iterator(1), with_rows.begin(), rows.begin());
  Vector<int> count(static_cast<std::size_t>(experts), 0), offset(static_cast<std::size_t>(experts) + 1, 0);
  thrust::scatter(rows.begin(), ends.second, with_rows.begin(), count.begin());
  thrust::inclusive_scan(count.begin(), count.end(), offset.begin() + 1);
  plan.row = on_host(row);
  plan.source = on_host(source);
  plan.source.resize(expert.size(), -1);
  plan.count = on_host(count);
  plan.offset = on_host(offset);
  return plan;
}

// K different experts for each valid token, some liked better than others.
Values random_choices(const Problem& q, const std::string& taste, std::uint64_t seed) {
  const RandomKey key{.seed = seed, .purpose = Purpose::test, .site = 0, .step = 0};
  const std::uint64_t experts = static_cast<std::uint64_t>(q.config.experts);
  Values choices;
  std::uint64_t drawn = 0;
  for (std::int64_t t = 0; t < q.tokens; ++t) {
    Values own;
    while (static_cast<std::int64_t>(own.size()) < q.config.top_k) {
      double e = static_cast<double>(below(key, drawn++, experts));
      if (taste == "skewed" && own.empty() && drawn % 4 != 0) {
        e = 1;
      }
      if (std::find(own.begin(), own.end(), e) == own.end()) {
        own.push_back(e);
      }
    }
    for (double& e : own) {
      const bool lost = taste == "gaps" && below(key, drawn++, 5) == 0;
      e = q.valid[t] == 0 || lost ? -1 : e;
    }
    choices.insert(choices.end(), own.begin(), own.end());
  }
  return choices;
}

// Whether what Thrust was compiled for can be used here.
bool thrust_runs() {
#if defined(__CUDACC__)
  int gpus = 0;
  return cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0;
#else
  return true;
#endif
}

TEST(PositionsByThrust, AreThoseOfEveryDevice) {
  if (!thrust_runs()) {
    GTEST_SKIP() << "no GPU: the CUDA code was compiled but cannot run here";
  }
  std::vector<Problem> all;
  for (const DropPolicy policy : {DropPolicy::position, DropPolicy::probability}) {
    all.push_back(with_capacity(problem(Kind::topk, 16, 4, 2, 1100, 9), 3, 4, policy));
    all.push_back(with_capacity(problem(Kind::gshard, 7, 2, 3, 900), 1, 2, policy));
    all.push_back(with_capacity(problem(Kind::switch_, 128, 1, 1, 5000), 5, 4, policy));
    all.push_back(with_capacity(problem(Kind::topk, 1000, 3, 1, 1500), 1, 1, policy));
  }
  all.push_back(problem(Kind::topk, 64, 8, 4, 600, 11));
  all.push_back(problem(Kind::topk, 3, 2, 1, 4099));
  for (const Problem& q : all) {
    for (const char* const taste : {"even", "skewed", "gaps"}) {
      const Values expert = random_choices(q, taste, 5);
      Values weight;
      for (std::size_t i = 0; i < expert.size(); ++i) {  // of few values, so that ties decide
        weight.push_back(
            static_cast<double>(below({.seed = 9, .purpose = Purpose::test, .site = 0, .step = 0}, i, 7) + 1) / 8);
      }
      const Plan want = plan_of(expert, weight, q);
      on_every_device([&](OpContext& c) {
        const Shape shape = {q.tokens, q.config.top_k};
        const Planned got =
            run_plan(c, c.input(DType::i32, shape, expert).tensor, c.input(DType::f32, shape, weight).tensor, q);
        c.expect("row", got.row, want.row, 0);
        c.expect("source", got.source, want.source, 0);
        c.expect("count", got.count, want.count, 0);
        c.expect("dropped", got.dropped, want.dropped, 0);
        c.expect("offset", got.offset, want.offset, 0);
      });
    }
  }
}

}  // namespace
}  // namespace orthant::test
