#include "plugins/nccl/nccl_group.h"

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

void NcclGroup::keep(const Tensor& out, const Tensor& in, Stream& s) const {
  if (out.elements() > 0) {
    copy_unless_same(out, in, s);
  }
}

void NcclGroup::all_reduce(const Tensor& t, ReduceOp op, Stream& s) {
  check(t, "all_reduce");
  check_reducible(t, "all_reduce");
  if (size() > 1) {
    World::Give give = [&](NcclConnection& c) { c.all_reduce(t, op, s); };
    collective("all_reduce", fmt::format("{}, {}", size_text(t), name_of(op)), bytes_of(t), s,
               t.elements() > 0 ? give : nullptr);
  }
}

void NcclGroup::all_gather(const Tensor& out, const Tensor& in, Stream& s) {
  check_blocks(out, in, "all_gather", "out", "in");
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  World::Give give = [&](NcclConnection& c) { c.all_gather(out, in, s); };
  collective("all_gather", size_text(in), bytes_of(in), s, in.elements() > 0 ? give : nullptr);
}

void NcclGroup::reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) {
  check_blocks(in, out, "reduce_scatter", "in", "out");
  check_reducible(in, "reduce_scatter");
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  World::Give give = [&](NcclConnection& c) { c.reduce_scatter(out, in, op, s); };
  collective("reduce_scatter", fmt::format("{}, {}", size_text(in), name_of(op)), bytes_of(in), s,
             out.elements() > 0 ? give : nullptr);
}

void NcclGroup::all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                           std::span<const std::int64_t> send_rows, Stream& s) {
  const Exchange counts = check_exchange(out, recv_rows, in, send_rows);
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  std::vector<Transfer> transfers;
  std::int64_t to = 0, from = 0;
  for (int r = 0; r < size(); ++r) {
    const std::int64_t sent = counts.send[static_cast<std::size_t>(r)];
    const std::int64_t received = counts.recv[static_cast<std::size_t>(r)];
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
  World::Give give = [&](NcclConnection& c) { c.transfer(transfers, s); };
  collective("all_to_all", orthant::name_of(in.dtype()), bytes_of(in), s, transfers.empty() ? nullptr : give);
}

void NcclGroup::broadcast(const Tensor& t, int root, Stream& s) {
  check(t, "broadcast");
  check_member(root, "broadcast", "root");
  if (size() > 1) {
    World::Give give = [&](NcclConnection& c) { c.broadcast(t, root, s); };
    collective("broadcast", fmt::format("{}, root {}", size_text(t), root), bytes_of(t), s,
               t.elements() > 0 ? give : nullptr);
  }
}

void NcclGroup::reduce(const Tensor& t, ReduceOp op, int root, Stream& s) {
  check(t, "reduce");
  check_reducible(t, "reduce");
  check_member(root, "reduce", "root");
  if (size() > 1) {
    World::Give give = [&](NcclConnection& c) { c.reduce(t, op, root, s); };
    collective("reduce", fmt::format("{}, {}, root {}", size_text(t), name_of(op), root), bytes_of(t), s,
               t.elements() > 0 ? give : nullptr);
  }
}

void NcclGroup::gather(const Tensor& out, const Tensor& in, int root, Stream& s) {
  check(in, "gather");
  check_member(root, "gather", "root");
  if (rank() == root) {
    check_blocks(out, in, "gather", "out", "in");
  }
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  const std::int64_t n = in.elements();
  std::vector<Transfer> transfers;
  if (rank() == root) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) {
        keep(part(out, r * n, n), in, s);
      } else {
        transfers.push_back({Transfer::receive, part(out, r * n, n), r});
      }
    }
  } else {
    transfers.push_back({Transfer::send, in, root});
  }
  World::Give give = [&](NcclConnection& c) { c.transfer(transfers, s); };
  collective("gather", fmt::format("{}, root {}", size_text(in), root), bytes_of(in), s, n > 0 ? give : nullptr);
}

void NcclGroup::scatter(const Tensor& out, const Tensor& in, int root, Stream& s) {
  check(out, "scatter");
  check_member(root, "scatter", "root");
  if (rank() == root) {
    check_blocks(in, out, "scatter", "in", "out");
  }
  if (size() == 1) {
    return copy_unless_same(out, in, s);
  }
  const std::int64_t n = out.elements();
  std::vector<Transfer> transfers;
  if (rank() == root) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) {
        keep(out, part(in, r * n, n), s);
      } else {
        transfers.push_back({Transfer::send, part(in, r * n, n), r});
      }
    }
  } else {
    transfers.push_back({Transfer::receive, out, root});
  }
  World::Give give = [&](NcclConnection& c) { c.transfer(transfers, s); };
  collective("scatter", fmt::format("{}, root {}", size_text(out), root), bytes_of(out), s, n > 0 ? give : nullptr);
}

void NcclGroup::send(const Tensor& t, int to, Stream& s) {
  check(t, "send");
  check_peer(to, "send");
  message(t, rank(), to, s);
}

void NcclGroup::recv(const Tensor& t, int from, Stream& s) {
  check(t, "recv");
  check_peer(from, "recv");
  message(t, from, rank(), s);
}

void NcclGroup::message(const Tensor& t, int from, int to, Stream& s) {
  const bool sends = from == rank();
  const int sender = members()[static_cast<std::size_t>(from)], receiver = members()[static_cast<std::size_t>(to)];
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

void NcclGroup::barrier(Stream& s) {
  if (size() == 1) {
    return;
  }
  if (!token_.defined()) {
    token_ = s.device().empty(DType::i32, {1});
    s.fill(token_, 0);
  }
  collective("barrier", "0 bytes", 0, s, [&](NcclConnection& c) { c.all_reduce(token_, ReduceOp::max, s); });
}

}  // namespace orthant::nccl
