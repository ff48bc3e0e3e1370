#include "nccl_group.h"

#include <orthant/device.h>
#include <orthant/ops.h>

namespace orthant::nccl {
namespace {

std::int64_t bytes_of(const Tensor& t) {
  return static_cast<std::int64_t>(t.bytes());
}

const char* name_of(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::max ? "max" : "min";
}

// "12 bytes of f32"
std::string size_text(const Tensor& t) {
  return fmt::format("{} bytes of {}", t.bytes(), orthant::name_of(t.dtype()));
}

// Elements first .. first + n of the flattened tensor.
Tensor part(const Tensor& t, std::int64_t first, std::int64_t n) {
  return t.slice(first, {n});
}

// What of a call stays on this rank.
void keep(const Tensor& out, const Tensor& in, Stream& s) {
  if (out.elements() > 0 && out.data() != in.data()) {
    s.copy(out, in);
  }
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<World> world, std::shared_ptr<NcclConnection> connection, int number,
                     std::string group_name, int rank, std::vector<int> group_members)
    : GroupBase(std::move(group_name), rank, std::move(group_members)),
      world_(std::move(world)),
      connection_(std::move(connection)),
      line_(std::make_shared<Line>(Line{std::to_string(number), name(), members()})) {}

NcclGroup::~NcclGroup() {
  if (size() > 1) {
    world_->finish(*line_);
    for (const auto& [way, line] : message_lines_) {
      world_->finish(*line);
    }
  }
}

void NcclGroup::collective(const char* name, const std::string& what, std::int64_t bytes, Stream& s,
                           const World::Give& give) {
  world_->run(
      line_, name, fmt::format("{} of {}", name, what), bytes, s, [this] { return connection_; }, give);
}

void NcclGroup::collective_of(const char* name, const Tensor& t, const std::string& rest, Stream& s,
                              const World::Give& give) {
  collective(name, size_text(t) + rest, bytes_of(t), s, t.elements() > 0 ? give : nullptr);
}

void NcclGroup::do_all_reduce(const Tensor& t, ReduceOp op, Stream& s) {
  collective_of("all_reduce", t, fmt::format(", {}", name_of(op)), s,
                [&](NcclConnection& c) { c.all_reduce(t, op, s); });
}

void NcclGroup::do_all_gather(const Tensor& out, const Tensor& in, Stream& s) {
  collective_of("all_gather", in, "", s, [&](NcclConnection& c) { c.all_gather(out, in, s); });
}

void NcclGroup::do_reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) {
  collective_of("reduce_scatter", in, fmt::format(", {}", name_of(op)), s,
                [&](NcclConnection& c) { c.reduce_scatter(out, in, op, s); });
}

void NcclGroup::do_all_to_all(const Tensor& out, const Tensor& in, const Exchange& counts, Stream& s) {
  std::vector<Transfer> transfers;
  std::int64_t to = 0, from = 0;
  for (int r = 0; r < size(); ++r) {
    const std::int64_t sent = counts.send[r];
    const std::int64_t received = counts.recv[r];
    if (r == rank()) {
      keep(part(out, to, received), part(in, from, sent), s);
    } else {
      if (sent > 0) {
        transfers.push_back({Transfer::send, part(in, from, sent), r});
      }
      if (received > 0) {
        transfers.push_back({Transfer::receive, part(out, to, received), r});
      }
    }
    from += sent;
    to += received;
  }
  const World::Give give = [&](NcclConnection& c) { c.transfer(transfers, s); };
  collective("all_to_all", orthant::name_of(in.dtype()), bytes_of(in), s, transfers.empty() ? nullptr : give);
}

void NcclGroup::do_broadcast(const Tensor& t, int root, Stream& s) {
  collective_of("broadcast", t, fmt::format(", root {}", root), s, [&](NcclConnection& c) { c.broadcast(t, root, s); });
}

void NcclGroup::do_reduce(const Tensor& t, ReduceOp op, int root, Stream& s) {
  collective_of("reduce", t, fmt::format(", {}, root {}", name_of(op), root), s,
                [&](NcclConnection& c) { c.reduce(t, op, root, s); });
}

std::vector<NcclGroup::Transfer> NcclGroup::transfers_with_root(RootDoes does, const Tensor& whole, const Tensor& block,
                                                                int root, Stream& s) const {
  const bool root_sends = does == RootDoes::send;
  if (rank() != root) {
    return {{root_sends ? Transfer::receive : Transfer::send, block, root}};
  }
  std::vector<Transfer> transfers;
  const std::int64_t n = block.elements();
  for (int r = 0; r < size(); ++r) {
    const Tensor of_member = part(whole, r * n, n);
    if (r != rank()) {
      transfers.push_back({root_sends ? Transfer::send : Transfer::receive, of_member, r});
    } else if (root_sends) {
      keep(block, of_member, s);
    } else {
      keep(of_member, block, s);
    }
  }
  return transfers;
}

void NcclGroup::do_gather(const Tensor& out, const Tensor& in, int root, Stream& s) {
  const std::vector<Transfer> transfers = transfers_with_root(RootDoes::receive, out, in, root, s);
  collective_of("gather", in, fmt::format(", root {}", root), s, [&](NcclConnection& c) { c.transfer(transfers, s); });
}

void NcclGroup::do_scatter(const Tensor& out, const Tensor& in, int root, Stream& s) {
  const std::vector<Transfer> transfers = transfers_with_root(RootDoes::send, in, out, root, s);
  collective_of("scatter", out, fmt::format(", root {}", root), s,
                [&](NcclConnection& c) { c.transfer(transfers, s); });
}

void NcclGroup::do_send(const Tensor& t, int to, Stream& s) {
  message(t, rank(), to, s);
}

void NcclGroup::do_recv(const Tensor& t, int from, Stream& s) {
  message(t, from, rank(), s);
}

void NcclGroup::message(const Tensor& t, int from, int to, Stream& s) {
  const bool sends = from == rank();
  const int sender = members()[from], receiver = members()[to];
  std::shared_ptr<const Line> line;
  {
    const std::lock_guard lock(message_mutex_);
    std::shared_ptr<const Line>& known = message_lines_[{from, to}];
    if (known == nullptr) {
      known = std::make_shared<Line>(Line{fmt::format("{} {}>{}", line_->key, from, to), name(), {sender, receiver}});
    }
    line = known;
  }
  const Transfer transfer{sends ? Transfer::send : Transfer::receive, t, sends ? 1 : 0};
  World::Give give = [&](NcclConnection& c) { c.transfer({&transfer, 1}, s); };
  world_->run(
      line, sends ? "send" : "recv", fmt::format("a message of {}", size_text(t)), bytes_of(t), s,
      [&] { return world_->messages(line->key, sender, receiver); }, t.elements() > 0 ? give : nullptr);
}

void NcclGroup::do_barrier(Stream& s) {
  if (!token_.defined()) {
    token_ = s.device().empty(DType::i32, {1});
    s.fill(token_, 0);
  }
  collective("barrier", "0 bytes", 0, s, [&](NcclConnection& c) { c.all_reduce(token_, ReduceOp::max, s); });
}

}  // namespace orthant::nccl
