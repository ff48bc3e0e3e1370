#include "core/dry_run/planning_communicator.h"

#include <algorithm>
#include <cstring>

#include <orthant/device.h>
#include <orthant/host_channel.h>
#include <orthant/ops.h>

#include "core/dry_run/meta_device.h"
#include "parallel/intercepted_group.h"

namespace orthant {
namespace {

class PlanningGroup final : public InterceptedGroup {
 public:
  PlanningGroup(std::string name, std::vector<int> members, int rank, std::size_t index, CollectiveRecord& record)
      : InterceptedGroup(std::move(name), std::move(members), rank), index_(index), record_(record) {}

 private:
  void call(const GroupCall& c, Stream& s) override {
    use(c, s);
    if (c.collective == Collective::barrier) {
      record_.calls.push_back({.group = index_, .operation = name_of(c.collective), .dtype = DType::u8});
      return;
    }
    require(c.in.defined() || c.out.defined(), "{} of group '{}' was given an undefined tensor", name_of(c.collective),
            name());
    if (c.collective == Collective::all_to_all) {
      require(c.send_rows.size() == members().size() && c.recv_rows.size() == members().size(),
              "all_to_all of group '{}': {} send counts and {} receive counts for {} members", name(),
              c.send_rows.size(), c.recv_rows.size(), size());
    }
    const Moved moved = moved_by(c);
    record_.calls.push_back({.group = index_,
                             .operation = name_of(c.collective),
                             .dtype = (c.in.defined() ? c.in : c.out).dtype(),
                             .bytes_in = moved.in,
                             .bytes_out = moved.out,
                             .bytes_sent = moved.sent});
    fill(c);
  }

  static void use(const GroupCall& c, Stream& s) {
    auto* const stream = dynamic_cast<MetaStream*>(&s);
    require(stream != nullptr, "a planned collective is given a stream of another device");
    const bool sums = c.collective == Collective::all_reduce || c.collective == Collective::reduce_scatter ||
                      c.collective == Collective::reduce;
    sums ? stream->sums({c.out, c.in}) : stream->uses({c.out, c.in});
  }

  static std::int64_t bytes(const Tensor& t) { return t.defined() ? static_cast<std::int64_t>(t.bytes()) : 0; }

  struct Moved {
    std::int64_t in, out, sent;  // CollectiveCall
  };
  Moved moved_by(const GroupCall& c) const {
    const std::int64_t in = bytes(c.in), out = bytes(c.out), n = size(), others = n - 1;
    const bool root = rank() == c.peer;
    switch (c.collective) {
      case Collective::all_reduce: return {in, out, 2 * in * others / n};
      case Collective::all_gather: return {in, out, in * others};
      case Collective::reduce_scatter: return {in, out, out * others};
      case Collective::all_to_all: return moved_by_exchange(c);
      case Collective::broadcast:
      case Collective::reduce: return {in, out, in * others / n};
      case Collective::gather: return {in, root ? out : 0, root ? 0 : in};
      case Collective::scatter: return {root ? in : 0, out, root ? out * others : 0};
      case Collective::send: return {in, 0, in};
      case Collective::recv: return {0, out, 0};
      case Collective::none:
      case Collective::barrier: break;
    }
    return {0, 0, 0};
  }
  Moved moved_by_exchange(const GroupCall& c) const {
    const std::int64_t row = row_bytes(c);
    Moved moved{0, 0, 0};
    for (std::size_t r = 0; r < members().size(); ++r) {
      moved.in += c.send_rows[r] * row;
      moved.out += c.recv_rows[r] * row;
    }
    moved.sent = moved.in - c.send_rows[rank()] * row;
    return moved;
  }
  static std::int64_t row_bytes(const GroupCall& c) { return c.in.dim(0) > 0 ? bytes(c.in) / c.in.dim(0) : 0; }

  // Tensors with data are filled as if every peer had the caller's.
  void fill(const GroupCall& c) const {
    const bool both = holds_data(c.out) && holds_data(c.in);
    const auto own = static_cast<std::size_t>(rank());
    switch (c.collective) {
      case Collective::all_reduce:
        if (both) {
          reduce_copies(c.out.data(), c.in.data(), c.out, c.op);
        }
        break;
      case Collective::reduce:
        if (both && rank() == c.peer) {
          reduce_copies(c.out.data(), c.in.data(), c.out, c.op);
        }
        break;
      case Collective::reduce_scatter:
        if (both) {
          reduce_copies(c.out.data(), c.in.as<std::byte>() + own * c.out.bytes(), c.out, c.op);
        }
        break;
      case Collective::all_gather:
        for (std::size_t r = 0; both && r < members().size(); ++r) {
          std::memmove(c.out.as<std::byte>() + r * c.in.bytes(), c.in.data(), c.in.bytes());
        }
        break;
      case Collective::all_to_all:
        if (both) {
          exchange_copies(c, own);
        }
        break;
      default: break;
    }
  }

  void exchange_copies(const GroupCall& c, std::size_t own) const {
    const std::int64_t row = row_bytes(c);
    std::int64_t before_own = 0;
    for (std::size_t r = 0; r < own; ++r) {
      before_own += c.send_rows[r] * row;
    }
    auto* to = c.out.as<std::byte>();
    for (std::size_t r = 0; r < members().size(); ++r) {
      const std::int64_t rows = std::min(c.recv_rows[r], c.send_rows[own]);
      std::memcpy(to, c.in.as<std::byte>() + before_own, static_cast<std::size_t>(rows * row));
      to += c.recv_rows[r] * row;
    }
  }

  // out = the reduction of size() copies of `in`, both like `t`.
  void reduce_copies(void* out, const void* in, const Tensor& t, ReduceOp op) const {
    if (t.dtype() == DType::i64 || t.dtype() == DType::f64) {  // counts, of as many ranks as there may be
      t.dtype() == DType::i64 ? reduce_equal<std::int64_t>(out, in, t, op) : reduce_equal<double>(out, in, t, op);
      return;
    }
    std::vector<std::byte> own(t.bytes());
    std::memcpy(own.data(), in, own.size());
    const std::vector<const void*> sources(members().size(), own.data());
    reduce_in_rank_order(out, sources, t.elements(), t.dtype(), op);
  }

  template <class T>
  void reduce_equal(void* out, const void* in, const Tensor& t, ReduceOp op) const {
    const T factor = op == ReduceOp::sum ? static_cast<T>(size()) : T{1};
    std::transform(static_cast<const T*>(in), static_cast<const T*>(in) + t.elements(), static_cast<T*>(out),
                   [&](T x) { return x * factor; });
  }

  std::size_t index_;
  CollectiveRecord& record_;
};

class PlanningCommunicator final : public Communicator {
 public:
  PlanningCommunicator(int rank, int world_size, CollectiveRecord& record)
      : rank_(rank), world_size_(world_size), record_(record) {}

  std::string name() const override { return "planning"; }
  int rank() const override { return rank_; }
  int size() const override { return world_size_; }
  void abort(const std::string&) noexcept override {}

  std::unique_ptr<Group> split(const std::string& name, const std::vector<int>& members) override {
    const auto own = std::find(members.begin(), members.end(), rank_);
    require(own != members.end(), "rank {} makes group '{}', to which it does not belong", rank_, name);
    record_.groups.push_back({name, members});
    return std::make_unique<PlanningGroup>(name, members, static_cast<int>(own - members.begin()),
                                           record_.groups.size() - 1, record_);
  }

 private:
  int rank_, world_size_;
  CollectiveRecord& record_;
};

}  // namespace

std::unique_ptr<Communicator> make_planning_communicator(int rank, int world_size, CollectiveRecord& record) {
  return std::make_unique<PlanningCommunicator>(rank, world_size, record);
}

}  // namespace orthant
