// The conformance suite of communicators: every collective of every group against plainly computed expectations.
//
// Used by local_test.cpp (ranks as threads and as processes), by mpi_conformance.cpp (under mpirun) and by
// tests/nccl/nccl_conformance.cpp (on GPUs), so it throws Error instead of using a test framework. Every rank can
// compute every other rank's input, so each one checks its own output alone.
#pragma once

#include <orthant/group.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "tests/comm/rig.h"

namespace orthant::test {

// Element `i` of what world rank `rank` contributes to call number `call`, in [-8, 8].
inline double input_value(int call, int rank, std::int64_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(call) << 48) ^ (static_cast<std::uint64_t>(rank) << 40) ^
                    static_cast<std::uint64_t>(i);
  x += 0x9e3779b97f4a7c15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-53 * 16.0 - 8.0;
}

// bf16 by its definition: of the two neighbours, the nearer; of equally near ones, the even.
inline std::uint16_t nearest_bf16(double value) {
  float f = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, 4);
  const std::uint32_t low = bits & 0xFFFF0000u, high = low + 0x10000u;
  float a = 0, b = 0;
  std::memcpy(&a, &low, 4);
  std::memcpy(&b, &high, 4);
  const double below = std::fabs(static_cast<double>(f) - a), above = std::fabs(static_cast<double>(b) - f);
  const bool up = above < below || (above == below && (high >> 16) % 2 == 0);
  return static_cast<std::uint16_t>((up ? high : low) >> 16);
}
inline float bf16_value(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float f = 0;
  std::memcpy(&f, &bits, 4);
  return f;
}

// How values of a dtype are made, and what a reduction of them in order gives.
template <class T>
T encode(double value, DType dtype) {
  if constexpr (std::is_same_v<T, std::uint16_t>) {
    return nearest_bf16(value);
  } else if constexpr (std::is_integral_v<T>) {
    return dtype == DType::u8 ? static_cast<T>(std::lround((value + 8) * 15))
                              : static_cast<T>(std::lround(value * 1000));
  } else {
    return static_cast<T>(value);
  }
}
template <class T>
T reduced(const std::vector<T>& values, ReduceOp op) {
  if constexpr (std::is_same_v<T, std::uint16_t>) {
    std::vector<float> wide;
    for (const T v : values) {
      wide.push_back(bf16_value(v));
    }
    return nearest_bf16(reduced(wide, op));
  } else {
    switch (op) {
      case ReduceOp::max: return *std::max_element(values.begin(), values.end());
      case ReduceOp::min: return *std::min_element(values.begin(), values.end());
      case ReduceOp::sum: break;
    }
    T sum = values[0];
    for (std::size_t i = 1; i < values.size(); ++i) {
      sum = static_cast<T>(sum + values[i]);
    }
    return sum;
  }
}

// In which order a communicator adds (group.h). any: inputs are whole numbers so small that their sums are exact.
enum class SumOrder { ranks, any };

class Conformance {
 public:
  explicit Conformance(Communicator& world, SumOrder order = SumOrder::ranks, const std::string& device = "cpu")
      : world_(world), order_(order), rig_(device) {}

  // sizes: element counts to try; the largest should need several chunks of the communicator's staging.
  void run(const std::vector<std::int64_t>& sizes) {
    const int p = world_.size(), me = world_.rank();
    std::vector<int> all(p);
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::unique_ptr<Group>> groups;
    groups.push_back(world_.split("all", all));
    std::vector<int> reversed(all.rbegin(), all.rend());
    groups.push_back(world_.split("reversed", reversed));
    std::vector<int> parity, alone{me}, uneven;
    for (const int r : all) {
      if (r % 2 == me % 2) {
        parity.push_back(r);
      }
      if ((r < 1) == (me < 1)) {  // the first, and the rest
        uneven.push_back(r);
      }
    }
    groups.push_back(world_.split("parity", parity));
    groups.push_back(world_.split("first and rest", uneven));
    groups.push_back(world_.split("alone", alone));
    groups.push_back(world_.split("again", all));
    for (std::unique_ptr<Group>& group : groups) {
      const bool member = std::find(group->members().begin(), group->members().end(), me) != group->members().end();
      expect(member && group->members()[group->rank()] == me, "membership");
      all_calls(*group, sizes);
    }
    // Two groups with the same members, calls interleaved.
    for (int i = 0; i < 10; ++i) {
      reductions<float>(*groups[i % 2 == 0 ? 0 : 5], DType::f32, 33, ReduceOp::sum);
    }
    random_calls(*groups[0], sizes);
  }

 private:
  void all_calls(Group& g, const std::vector<std::int64_t>& sizes) {
    for (const std::int64_t n : sizes) {
      reductions<float>(g, DType::f32, n, ReduceOp::sum);
      reductions<float>(g, DType::f32, n, ReduceOp::max);
      reductions<std::uint16_t>(g, DType::bf16, n, ReduceOp::sum);
      reductions<std::uint16_t>(g, DType::bf16, n, ReduceOp::min);
      reductions<double>(g, DType::f64, n, ReduceOp::sum);
      reductions<std::int32_t>(g, DType::i32, n, ReduceOp::sum);
      reductions<std::int64_t>(g, DType::i64, n, ReduceOp::min);
      moves<float>(g, DType::f32, n);
      moves<std::uint8_t>(g, DType::u8, n);
      moves<std::uint16_t>(g, DType::bf16, n);
      exchange<float>(g, DType::f32, n, 3);
      exchange<std::int64_t>(g, DType::i64, n, 1);
      pairs<float>(g, DType::f32, n);
      g.barrier(*rig_.stream);
    }
  }

  // The same pseudo-random series of calls on every rank.
  void random_calls(Group& g, const std::vector<std::int64_t>& sizes) {
    std::mt19937 random(7);
    const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
    for (int i = 0; i < 60; ++i) {
      const auto n = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(largest / (1 + i % 50) + 1));
      switch (random() % 4) {
        case 0: reductions<float>(g, DType::f32, n, ReduceOp::sum); break;
        case 1: moves<std::int32_t>(g, DType::i32, n); break;
        case 2: exchange<float>(g, DType::f32, n, 2); break;
        default: pairs<std::uint8_t>(g, DType::u8, n); break;
      }
    }
  }

  template <class T>
  std::vector<T> input(int world_rank, std::int64_t n, DType dtype) const {
    std::vector<T> v(n);
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = input_value(call_, world_rank, i);
      v[i] = encode<T>(order_ == SumOrder::any ? std::round(value) + 0.0 : value, dtype);  // + 0.0: no -0
    }
    return v;
  }

  template <class T>
  void reductions(Group& g, DType dtype, std::int64_t n, ReduceOp op) {
    ++call_;
    Stream& s = *rig_.stream;
    const std::int64_t p = g.size();
    const auto own = static_cast<std::size_t>(g.rank());
    // Inputs of p * n elements, for reduce_scatter; the first n of them for the others.
    std::vector<std::vector<T>> in;
    for (const int member : g.members()) {
      in.push_back(input<T>(member, p * n, dtype));
    }
    std::vector<T> sum(p * n);
    std::vector<T> column(p);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      for (std::size_t r = 0; r < column.size(); ++r) {
        column[r] = in[r][i];
      }
      sum[i] = reduced(column, op);
    }
    const std::vector<T> head(sum.begin(), sum.begin() + n);
    const std::vector<T> own_head(in[own].begin(), in[own].begin() + n);

    Tensor t = rig_.tensor_of(dtype, {n}, own_head);
    g.all_reduce(t, op, s);
    same(g, "all_reduce", rig_.values<T>(t), head);

    const int root = static_cast<int>(static_cast<std::int64_t>(call_) % p);
    t = rig_.tensor_of(dtype, {n}, own_head);
    g.reduce(t, op, root, s);
    same(g, "reduce", rig_.values<T>(t), g.rank() == root ? head : own_head);

    const std::vector<T> block(sum.begin() + g.rank() * n, sum.begin() + (g.rank() + 1) * n);
    Tensor whole = rig_.tensor_of(dtype, {p, n}, in[own]);
    Tensor out = rig_.device->empty(dtype, {n});
    g.reduce_scatter(out, whole, op, s);
    same(g, "reduce_scatter", rig_.values<T>(out), block);
    out = whole.slice(g.rank() * n, {n});
    g.reduce_scatter(out, whole, op, s);
    same(g, "reduce_scatter into its own block", rig_.values<T>(out), block);
  }

  template <class T>
  void moves(Group& g, DType dtype, std::int64_t n) {
    ++call_;
    Stream& s = *rig_.stream;
    const std::int64_t p = g.size();
    const int me = world_.rank();
    std::vector<T> all;
    for (const int member : g.members()) {
      const std::vector<T> v = input<T>(member, n, dtype);
      all.insert(all.end(), v.begin(), v.end());
    }
    const std::vector<T> own = input<T>(me, n, dtype);
    const Tensor mine = rig_.tensor_of(dtype, {n}, own);

    Tensor out = rig_.device->empty(dtype, {p, n});
    g.all_gather(out, mine, s);
    same(g, "all_gather", rig_.values<T>(out), all);
    Tensor in_place = rig_.tensor_of(dtype, {p, n}, std::vector<T>(all.size()));
    s.copy(in_place.slice(g.rank() * n, {n}), mine);
    g.all_gather(in_place, in_place.slice(g.rank() * n, {n}), s);
    same(g, "all_gather from its own block", rig_.values<T>(in_place), all);

    const int root = static_cast<int>(static_cast<std::int64_t>(call_) % p);
    const int world_root = g.members()[root];
    Tensor t = rig_.tensor_of(dtype, {n}, own);
    g.broadcast(t, root, s);
    same(g, "broadcast", rig_.values<T>(t), input<T>(world_root, n, dtype));

    Tensor gathered = rig_.tensor_of(dtype, {p * n}, std::vector<T>(all.size()));
    g.gather(g.rank() == root ? gathered : Tensor(), mine, root, s);
    same(g, "gather", rig_.values<T>(gathered), g.rank() == root ? all : std::vector<T>(all.size()));

    const std::vector<T> from_root = input<T>(world_root, p * n, dtype);
    const Tensor parts = g.rank() == root ? rig_.tensor_of(dtype, {p * n}, from_root) : Tensor();
    Tensor part = rig_.device->empty(dtype, {n});
    g.scatter(part, parts, root, s);
    same(g, "scatter", rig_.values<T>(part),
         std::vector<T>(from_root.begin() + g.rank() * n, from_root.begin() + (g.rank() + 1) * n));
  }

  // Rows that `from` sends to `to`: uneven, some zero, at most about 2 n / p.
  static std::int64_t rows_between(int call, int from, int to, std::int64_t n, std::int64_t p) {
    const double u = (input_value(call, from, 1000 + to) + 8) / 16;
    return u < 0.3 ? 0 : static_cast<std::int64_t>(u * 2 * static_cast<double>(n) / static_cast<double>(p));
  }

  template <class T>
  void exchange(Group& g, DType dtype, std::int64_t n, std::int64_t width) {
    ++call_;
    const std::int64_t p = g.size();
    std::vector<std::int64_t> send, recv;
    std::vector<T> expected;
    const int me = world_.rank();
    for (const int member : g.members()) {
      send.push_back(rows_between(call_, me, member, n, p));
      recv.push_back(rows_between(call_, member, me, n, p));
      // What `member` sends starts after its rows for the members before me.
      std::int64_t before = 0;
      for (int r = 0; r < g.rank(); ++r) {
        before += rows_between(call_, member, g.members()[r], n, p);
      }
      const std::vector<T> theirs = input<T>(member, (before + recv.back()) * width, dtype);
      expected.insert(expected.end(), theirs.begin() + before * width, theirs.end());
    }
    const std::int64_t rows_out = std::accumulate(send.begin(), send.end(), std::int64_t{0});
    const std::int64_t rows_in = std::accumulate(recv.begin(), recv.end(), std::int64_t{0});
    const Tensor in = rig_.tensor_of(dtype, {rows_out, width}, input<T>(me, rows_out * width, dtype));
    const Tensor out = rig_.device->empty(dtype, {rows_in, width});
    g.all_to_all(out, recv, in, send, *rig_.stream);
    same(g, "all_to_all", rig_.values<T>(out), expected);
  }

  // Round a ring: even ranks send first, so that no communicator needs to buffer.
  template <class T>
  void pairs(Group& g, DType dtype, std::int64_t n) {
    ++call_;  // on every rank, whatever the size of its group: the number decides the data
    const int p = g.size();
    if (p == 1) {
      return;
    }
    const int next = (g.rank() + 1) % p, last = (g.rank() + p - 1) % p;
    const Tensor out = rig_.tensor_of(dtype, {n}, input<T>(world_.rank(), n, dtype));
    const Tensor in = rig_.device->empty(dtype, {n});
    if (g.rank() % 2 == 0) {
      g.send(out, next, *rig_.stream);
      g.recv(in, last, *rig_.stream);
    } else {
      g.recv(in, last, *rig_.stream);
      g.send(out, next, *rig_.stream);
    }
    same(g, "recv", rig_.values<T>(in), input<T>(g.members()[last], n, dtype));
  }

  template <class T>
  void same(Group& g, const char* what, const std::vector<T>& found, const std::vector<T>& expected) {
    require(found.size() == expected.size(), "{} in group '{}' (call {}): {} elements, expected {}", what, g.name(),
            call_, found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      require(found[i] == expected[i], "{} in group '{}' (call {}, rank {}): element {} of {} is {}, expected {}", what,
              g.name(), call_, g.rank(), i, found.size(), found[i], expected[i]);
    }
  }
  static void expect(bool ok, const char* what) { require(ok, "{} is wrong", what); }

  Communicator& world_;
  SumOrder order_;
  Rig rig_;
  int call_ = 0;
};

}  // namespace orthant::test
