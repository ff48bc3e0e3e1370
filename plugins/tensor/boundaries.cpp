#include "boundaries.h"

namespace orthant::tensor {
namespace {

Tensor summed(Group& group, Tensor parts, Stream& s) {
  group.all_reduce(parts, ReduceOp::sum, s);
  return parts;
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape.set(0, rows);
  return shape;
}

Tensor all_rows(Group& group, const Tensor& own, Stream& s) {
  Tensor all = s.device().empty(own.dtype(), with_rows(own.shape(), own.dim(0) * group.size()));
  group.all_gather(all, own, s);
  return all;
}

std::int64_t rows_of_each(const Group& group, const Tensor& all) {
  require(all.dim(0) % group.size() == 0, "{} rows do not divide among the {} ranks of the tensor axis", all.dim(0),
          group.size());
  return all.dim(0) / group.size();
}

Tensor own_rows_of_sum(Group& group, const Tensor& parts, Stream& s) {
  Tensor own = s.device().empty(parts.dtype(), with_rows(parts.shape(), rows_of_each(group, parts)));
  group.reduce_scatter(own, parts, ReduceOp::sum, s);
  return own;
}

Tensor own_rows(const Group& group, const Tensor& all) {
  const std::int64_t rows = rows_of_each(group, all);
  return all.rows(rows * group.rank(), rows);
}

class OfGroup : public Boundary {
 public:
  explicit OfGroup(Group& group) : group_(group) {}

 protected:
  Group& group_;
};

struct Copy final : OfGroup {
  using OfGroup::OfGroup;
  Tensor forward(Tensor x, Stream&) override { return x; }
  Tensor backward(Tensor dy, Stream& s) override { return summed(group_, std::move(dy), s); }
};

struct Sum final : OfGroup {
  using OfGroup::OfGroup;
  Tensor forward(Tensor x, Stream& s) override { return summed(group_, std::move(x), s); }
  Tensor backward(Tensor dy, Stream&) override { return dy; }
};

struct GatherRows final : OfGroup {
  using OfGroup::OfGroup;
  Tensor forward(Tensor x, Stream& s) override { return all_rows(group_, x, s); }
  Tensor backward(Tensor dy, Stream& s) override { return own_rows_of_sum(group_, dy, s); }
};

struct ScatterSum final : OfGroup {
  using OfGroup::OfGroup;
  Tensor forward(Tensor x, Stream& s) override { return own_rows_of_sum(group_, x, s); }
  Tensor backward(Tensor dy, Stream& s) override { return all_rows(group_, dy, s); }
};

struct TakeRows final : OfGroup {
  using OfGroup::OfGroup;
  Tensor forward(Tensor x, Stream&) override { return own_rows(group_, x); }
  Tensor backward(Tensor dy, Stream& s) override { return all_rows(group_, dy, s); }
};

struct JoinRows final : OfGroup {
  using OfGroup::OfGroup;
  Tensor forward(Tensor x, Stream& s) override { return all_rows(group_, x, s); }
  Tensor backward(Tensor dy, Stream&) override { return own_rows(group_, dy); }
};

}  // namespace

std::unique_ptr<Boundary> make_copy(Group& group) {
  return std::make_unique<Copy>(group);
}
std::unique_ptr<Boundary> make_sum(Group& group) {
  return std::make_unique<Sum>(group);
}
std::unique_ptr<Boundary> make_gather_rows(Group& group) {
  return std::make_unique<GatherRows>(group);
}
std::unique_ptr<Boundary> make_scatter_sum(Group& group) {
  return std::make_unique<ScatterSum>(group);
}
std::unique_ptr<Boundary> make_take_rows(Group& group) {
  return std::make_unique<TakeRows>(group);
}
std::unique_ptr<Boundary> make_join_rows(Group& group) {
  return std::make_unique<JoinRows>(group);
}

}  // namespace orthant::tensor
