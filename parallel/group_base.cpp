#include <orthant/group_base.h>
#include <orthant/ops.h>

namespace orthant {
namespace {

std::int64_t row_elements(const Tensor& t) {
  std::int64_t n = 1;
  for (int i = 1; i < t.rank(); ++i) {
    n *= t.dim(i);
  }
  return n;
}

std::vector<std::int64_t> elements_of(const Group& group, const Tensor& t, std::span<const std::int64_t> rows,
                                      const char* tensor_name, const char* counts_name) {
  require(rows.size() == group.members().size(), "all_to_all of group '{}': {} has {} entries for {} members",
          group.name(), counts_name, rows.size(), group.size());
  std::vector<std::int64_t> elements;
  std::int64_t total = 0;
  for (const std::int64_t r : rows) {
    require(r >= 0, "all_to_all of group '{}': {} has a negative entry {}", group.name(), counts_name, r);
    total += r;
    elements.push_back(r * row_elements(t));
  }
  require(t.rank() > 0 && total <= t.dim(0), "all_to_all of group '{}': {} sums to {} rows but {} is {}", group.name(),
          counts_name, total, tensor_name, t.shape());
  return elements;
}

// What moving calls do in a group of one.
void copy_unless_same(const Tensor& out, const Tensor& in, Stream& s) {
  if (out.data() != in.data()) {
    s.copy(out, in);
  }
}

}  // namespace

void GroupBase::check(const Tensor& t, const char* call) const {
  require(t.defined(), "{} of group '{}' was given an undefined tensor", call, name_);
}

void GroupBase::check_reducible(const Tensor& t, const char* call) const {
  require(is_summable(t.dtype()), "{} of group '{}': {} tensors can be moved but not reduced", call, name_,
          name_of(t.dtype()));
}

void GroupBase::check_member(int rank, const char* call, const char* role) const {
  require(rank >= 0 && rank < size(), "{} of group '{}': {} {} is not one of its {} members", call, name_, role, rank,
          size());
}

void GroupBase::check_peer(int peer, const char* call) const {
  check_member(peer, call, "peer");
  require(peer != rank_, "{} of group '{}': rank {} cannot be its own peer", call, name_, rank_);
}

void GroupBase::check_blocks(const Tensor& whole, const Tensor& block, const char* call, const char* whole_name,
                             const char* block_name) const {
  check(whole, call);
  check(block, call);
  require(whole.dtype() == block.dtype() && whole.elements() == block.elements() * size(),
          "{} of group '{}': {} ({} {}) must have {} times the elements of {} ({} {})", call, name_, whole_name,
          name_of(whole.dtype()), whole.shape(), size(), block_name, name_of(block.dtype()), block.shape());
}

GroupBase::Exchange GroupBase::check_exchange(const Tensor& out, std::span<const std::int64_t> recv_rows,
                                              const Tensor& in, std::span<const std::int64_t> send_rows) const {
  check(out, "all_to_all");
  check(in, "all_to_all");
  Exchange counts;
  counts.send = elements_of(*this, in, send_rows, "in", "send_rows");
  counts.recv = elements_of(*this, out, recv_rows, "out", "recv_rows");
  require(out.dtype() == in.dtype() && row_elements(out) == row_elements(in),
          "all_to_all of group '{}': rows of in ({} {}) and out ({} {}) differ", name_, name_of(in.dtype()), in.shape(),
          name_of(out.dtype()), out.shape());
  const auto own = static_cast<std::size_t>(rank_);
  require(counts.send[own] == counts.recv[own],
          "all_to_all of group '{}': {} elements sent but {} expected by rank {} itself", name_, counts.send[own],
          counts.recv[own], members_[own]);
  return counts;
}

void GroupBase::all_reduce(const Tensor& t, ReduceOp op, Stream& s) {
  check(t, "all_reduce");
  check_reducible(t, "all_reduce");
  if (size() > 1) {
    do_all_reduce(t, op, s);
  }
}

void GroupBase::all_gather(const Tensor& out, const Tensor& in, Stream& s) {
  check_blocks(out, in, "all_gather", "out", "in");
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  do_all_gather(out, in, s);
}

void GroupBase::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) {
  check_blocks(in, out, "reduce_scatter", "in", "out");
  check_reducible(in, "reduce_scatter");
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  do_reduce_scatter(out, in, op, s);
}

void GroupBase::all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                           std::span<const std::int64_t> send_rows, Stream& s) {
  const Exchange counts = check_exchange(out, recv_rows, in, send_rows);
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  do_all_to_all(out, in, counts, s);
}

void GroupBase::broadcast(const Tensor& t, int root, Stream& s) {
  check(t, "broadcast");
  check_member(root, "broadcast", "root");
  if (size() > 1) {
    do_broadcast(t, root, s);
  }
}

void GroupBase::reduce(const Tensor& t, ReduceOp op, int root, Stream& s) {
  check(t, "reduce");
  check_reducible(t, "reduce");
  check_member(root, "reduce", "root");
  if (size() > 1) {
    do_reduce(t, op, root, s);
  }
}

void GroupBase::gather(const Tensor& out, const Tensor& in, int root, Stream& s) {
  check(in, "gather");
  check_member(root, "gather", "root");
  if (rank() == root) {
    check_blocks(out, in, "gather", "out", "in");
  }
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  do_gather(out, in, root, s);
}

void GroupBase::scatter(const Tensor& out, const Tensor& in, int root, Stream& s) {
  check(out, "scatter");
  check_member(root, "scatter", "root");
  if (rank() == root) {
    check_blocks(in, out, "scatter", "in", "out");
  }
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  do_scatter(out, in, root, s);
}

void GroupBase::send(const Tensor& t, int to, Stream& s) {
  check(t, "send");
  check_peer(to, "send");
  do_send(t, to, s);
}

void GroupBase::recv(const Tensor& t, int from, Stream& s) {
  check(t, "recv");
  check_peer(from, "recv");
  do_recv(t, from, s);
}

void GroupBase::barrier(Stream& s) {
  if (size() > 1) {
    do_barrier(s);
  }
}

}  // namespace orthant
