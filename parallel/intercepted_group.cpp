#include "parallel/intercepted_group.h"

#include <algorithm>

namespace orthant {

void InterceptedGroup::all_reduce(const Tensor& t, ReduceOp op, Stream& s) {
  call({.collective = Collective::all_reduce, .out = t, .in = t, .op = op}, s);
}
void InterceptedGroup::all_gather(const Tensor& out, const Tensor& in, Stream& s) {
  call({.collective = Collective::all_gather, .out = out, .in = in}, s);
}
void InterceptedGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) {
  call({.collective = Collective::reduce_scatter, .out = out, .in = in, .op = op}, s);
}
void InterceptedGroup::all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                                  std::span<const std::int64_t> send_rows, Stream& s) {
  call({.collective = Collective::all_to_all, .out = out, .in = in, .recv_rows = recv_rows, .send_rows = send_rows}, s);
}
void InterceptedGroup::broadcast(const Tensor& t, int root, Stream& s) {
  call({.collective = Collective::broadcast, .out = t, .in = t, .peer = root}, s);
}
void InterceptedGroup::reduce(const Tensor& t, ReduceOp op, int root, Stream& s) {
  call({.collective = Collective::reduce, .out = t, .in = t, .op = op, .peer = root}, s);
}
void InterceptedGroup::gather(const Tensor& out, const Tensor& in, int root, Stream& s) {
  call({.collective = Collective::gather, .out = out, .in = in, .peer = root}, s);
}
void InterceptedGroup::scatter(const Tensor& out, const Tensor& in, int root, Stream& s) {
  call({.collective = Collective::scatter, .out = out, .in = in, .peer = root}, s);
}
void InterceptedGroup::send(const Tensor& t, int to, Stream& s) {
  call({.collective = Collective::send, .out = t, .in = t, .peer = to}, s);
}
void InterceptedGroup::recv(const Tensor& t, int from, Stream& s) {
  call({.collective = Collective::recv, .out = t, .in = t, .peer = from}, s);
}
void InterceptedGroup::barrier(Stream& s) {
  call({.collective = Collective::barrier, .out = {}, .in = {}}, s);
}

void perform(const GroupCall& c, Group& group, Stream& s) {
  switch (c.collective) {
    case Collective::none: return;
    case Collective::all_reduce: return group.all_reduce(c.out, c.op, s);
    case Collective::all_gather: return group.all_gather(c.out, c.in, s);
    case Collective::reduce_scatter: return group.reduce_scatter(c.out, c.in, c.op, s);
    case Collective::all_to_all: return group.all_to_all(c.out, c.recv_rows, c.in, c.send_rows, s);
    case Collective::broadcast: return group.broadcast(c.out, c.peer, s);
    case Collective::reduce: return group.reduce(c.out, c.op, c.peer, s);
    case Collective::gather: return group.gather(c.out, c.in, c.peer, s);
    case Collective::scatter: return group.scatter(c.out, c.in, c.peer, s);
    case Collective::send: return group.send(c.out, c.peer, s);
    case Collective::recv: return group.recv(c.out, c.peer, s);
    case Collective::barrier: return group.barrier(s);
  }
}

namespace {

class DryGroup final : public InterceptedGroup {
 public:
  DryGroup(std::string name, std::vector<int> members, int rank)
      : InterceptedGroup(std::move(name), std::move(members), rank) {}

 private:
  void call(const GroupCall&, Stream&) override {
    fail("group '{}' belongs to a dry run: it cannot communicate", name());
  }
};

}  // namespace

std::unique_ptr<Group> make_dry_group(std::string name, std::vector<int> members, int world_rank) {
  const int rank = static_cast<int>(std::find(members.begin(), members.end(), world_rank) - members.begin());
  return std::make_unique<DryGroup>(std::move(name), std::move(members), rank);
}

}  // namespace orthant
