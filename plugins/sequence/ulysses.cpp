#include "ulysses.h"

namespace orthant::sequence {
namespace {

Tensor exchange(Group& group, const Tensor& rows, Stream& s) {
  const std::vector<std::int64_t> each(group.size(), rows.dim(0) / group.size());
  Tensor arrived = s.device().empty(rows.dtype(), rows.shape());
  group.all_to_all(arrived, each, rows, each, s);
  return arrived;
}

// [T, columns] -> [T ranks, columns / ranks].
Tensor scatter_heads(Group& group, std::int64_t slice, const Tensor& x, Stream& s) {
  const std::int64_t n = group.size(), tokens = x.dim(0), width = x.dim(1) / n, sequences = tokens / slice;
  Tensor send = s.device().empty(x.dtype(), {n, tokens, width});
  s.swap_outer(send, x.view({tokens, n, width}));
  const Tensor arrived = exchange(group, send.view({n * tokens, width}), s);  // [rank, sequence, slice, width]
  Tensor whole = s.device().empty(x.dtype(), {sequences, n, slice * width});
  s.swap_outer(whole, arrived.view({n, sequences, slice * width}));
  return whole.view({n * tokens, width});
}

// [T ranks, width] -> [T, width ranks].
Tensor gather_heads(Group& group, std::int64_t slice, const Tensor& x, Stream& s) {
  const std::int64_t n = group.size(), tokens = x.dim(0) / n, width = x.dim(1), sequences = tokens / slice;
  Tensor send = s.device().empty(x.dtype(), {n, sequences, slice * width});
  s.swap_outer(send, x.view({sequences, n, slice * width}));
  const Tensor arrived = exchange(group, send.view({n * tokens, width}), s);  // [rank, token, width]
  Tensor heads = s.device().empty(x.dtype(), {tokens, n, width});
  s.swap_outer(heads, arrived.view({n, tokens, width}));
  return heads.view({tokens, n * width});
}

// Each direction is the other's adjoint: rows change place, and nothing is added.
class Rearrange final : public Boundary {
 public:
  Rearrange(Group& group, std::vector<std::int64_t> slices, bool to_heads)
      : group_(group), slices_(std::move(slices)), to_heads_(to_heads) {}
  Tensor forward(Tensor x, Stream& s) override { return forward_in(0, std::move(x), s); }
  Tensor backward(Tensor dy, Stream& s) override { return backward_in(0, std::move(dy), s); }
  Tensor forward_in(int space, Tensor x, Stream& s) override { return rearranged(to_heads_, space, x, s); }
  Tensor backward_in(int space, Tensor dy, Stream& s) override { return rearranged(!to_heads_, space, dy, s); }

 private:
  Tensor rearranged(bool to_heads, int space, const Tensor& x, Stream& s) {
    const std::int64_t slice = slices_.at(static_cast<std::size_t>(space));
    return to_heads ? scatter_heads(group_, slice, x, s) : gather_heads(group_, slice, x, s);
  }

  Group& group_;
  std::vector<std::int64_t> slices_;  // in each token space
  bool to_heads_;
};

}  // namespace

std::unique_ptr<Boundary> make_to_heads(Group& group, std::vector<std::int64_t> slices) {
  return std::make_unique<Rearrange>(group, std::move(slices), true);
}
std::unique_ptr<Boundary> make_to_positions(Group& group, std::vector<std::int64_t> slices) {
  return std::make_unique<Rearrange>(group, std::move(slices), false);
}

}  // namespace orthant::sequence
