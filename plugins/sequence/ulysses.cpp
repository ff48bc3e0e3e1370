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
  Rearrange(Group& group, std::int64_t slice, bool to_heads) : group_(group), slice_(slice), to_heads_(to_heads) {}
  Tensor forward(Tensor x, Stream& s) override { return to_heads_ ? to_heads(x, s) : to_positions(x, s); }
  Tensor backward(Tensor dy, Stream& s) override { return to_heads_ ? to_positions(dy, s) : to_heads(dy, s); }

 private:
  Tensor to_heads(const Tensor& x, Stream& s) { return scatter_heads(group_, slice_, x, s); }
  Tensor to_positions(const Tensor& x, Stream& s) { return gather_heads(group_, slice_, x, s); }

  Group& group_;
  std::int64_t slice_;
  bool to_heads_;
};

}  // namespace

std::unique_ptr<Boundary> make_to_heads(Group& group, std::int64_t slice) {
  return std::make_unique<Rearrange>(group, slice, true);
}
std::unique_ptr<Boundary> make_to_positions(Group& group, std::int64_t slice) {
  return std::make_unique<Rearrange>(group, slice, false);
}

}  // namespace orthant::sequence
