// A stand-in for NCCL on host memory, between threads of one process, for the logic around it.
//
// Like the original: a connection runs what it is asked in one order, whatever the streams; a send waits for its
// receiver; ends become ready when all have connected; the first collective, and the first message of a pair, is not
// ready before the others have asked for theirs; an end that is not ready takes no call; a call with other sizes than
// its peers' hangs; abort lets streams go on.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include <orthant/device.h>
#include <orthant/host_channel.h>
#include <orthant/ops.h>

#include "plugins/nccl/nccl_api.h"

namespace orthant::nccl::test {

using Bytes = std::vector<std::byte>;

// What the ends of one connection share.
struct FakeWire {
  explicit FakeWire(int ranks)
      : joined(static_cast<std::size_t>(ranks)), offered(joined.size()), kinds(joined.size()) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> joined;
  int closed = 0;
  bool connects = true, aborted = false;
  std::string broken;  // an asynchronous error
  // One collective at a time: a rank offers its part when the last collective is over for everyone.
  std::vector<std::optional<Bytes>> offered;
  std::vector<std::string> kinds;  // of the parts offered
  int taken = 0;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;  // (from, to)
  // Who has asked for what NCCL connects when it is first used: collectives of all, messages of a pair (from, to).
  std::set<int> asked_collective;
  std::map<std::pair<int, int>, std::set<int>> asked_message;
};

class FakeNetwork {
 public:
  std::shared_ptr<FakeWire> wire(const ConnectionId& id, int size) {
    const std::lock_guard lock(mutex_);
    auto& wire = wires_[std::string(id.data(), id.size())];
    if (wire == nullptr) {
      wire = std::make_shared<FakeWire>(size);
      wire->connects = connects_;
    }
    return wire;
  }
  ConnectionId new_id() {
    const std::lock_guard lock(mutex_);
    ConnectionId id{};
    const std::string text = "fake " + std::to_string(count_++);
    std::memcpy(id.data(), text.data(), text.size());
    return id;
  }
  // Every connection meets `error` on its own.
  void break_all(const std::string& error) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, wire] : wires_) {
      const std::lock_guard wire_lock(wire->mutex);
      wire->broken = error;
    }
  }
  // Later connections are never ready.
  void connect_nobody() {
    const std::lock_guard lock(mutex_);
    connects_ = false;
  }
  int connections() {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(wires_.size());
  }

 private:
  std::mutex mutex_;
  int count_ = 0;
  bool connects_ = true;
  std::map<std::string, std::shared_ptr<FakeWire>> wires_;
};

class FakeConnection final : public NcclConnection {
 public:
  FakeConnection(std::shared_ptr<FakeWire> wire, int rank) : order_(std::make_shared<Order>()), rank_(rank) {
    order_->wire = std::move(wire);
    const std::lock_guard lock(order_->wire->mutex);
    order_->wire->joined[rank] = true;
  }
  ~FakeConnection() override {
    if (!closed_) {
      abort();
    }
  }

  bool ready() override {
    const std::lock_guard lock(order_->wire->mutex);
    return ready_locked();
  }

  void warm_up(Carries what) override {
    ask([&](FakeWire& wire) {
      if (what == Carries::collectives) {
        wire.asked_collective.insert(rank_);
      } else {
        pairs_.insert({0, 1});
        wire.asked_message[{0, 1}].insert(rank_);
      }
    });
  }

  void all_reduce(const Tensor& t, ReduceOp op, Stream& s) override {
    const DType dtype = t.dtype();
    const std::int64_t n = t.elements();
    collective("all_reduce", t, t, s,
               [=](const std::vector<Bytes>& parts, std::byte* out) { sum(out, parts, 0, n, dtype, op); });
  }
  void all_gather(const Tensor& out, const Tensor& in, Stream& s) override {
    collective("all_gather", out, in, s, [](const std::vector<Bytes>& parts, std::byte* to) {
      for (const Bytes& part : parts) {
        to = std::copy(part.begin(), part.end(), to);
      }
    });
  }
  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) override {
    const DType dtype = in.dtype();
    const std::int64_t n = out.elements(), first = n * rank_;
    collective("reduce_scatter", out, in, s,
               [=](const std::vector<Bytes>& parts, std::byte* to) { sum(to, parts, first, n, dtype, op); });
  }
  void broadcast(const Tensor& t, int root, Stream& s) override {
    collective("broadcast", t, t, s, [root](const std::vector<Bytes>& parts, std::byte* to) {
      const Bytes& from = parts[root];
      std::copy(from.begin(), from.end(), to);
    });
  }
  void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) override {
    const DType dtype = t.dtype();
    const std::int64_t n = t.elements();
    collective("reduce", t, t, s, [=, this](const std::vector<Bytes>& parts, std::byte* to) {
      if (rank_ == root) {
        sum(to, parts, 0, n, dtype, op);
      }
    });
  }
  void transfer(std::span<const Transfer> transfers, Stream& s) override {
    std::vector<Transfer> list(transfers.begin(), transfers.end());
    ask([&](FakeWire& wire) {
      for (const Transfer& t : list) {
        const auto pair = t.way == Transfer::send ? std::pair(rank_, t.peer) : std::pair(t.peer, rank_);
        wire.asked_message[pair].insert(rank_);
        pairs_.insert(pair);
      }
    });
    in_order(s, [list, rank = rank_](FakeWire& wire, std::unique_lock<std::mutex>& lock) {
      for (const Transfer& t : list) {
        if (t.way == Transfer::send) {
          wire.letters[{rank, t.peer}].push_back(read(t.tensor));
        }
      }
      wire.changed.notify_all();
      for (const Transfer& t : list) {
        if (t.way == Transfer::receive) {
          auto& letters = wire.letters[{t.peer, rank}];
          wait(wire, lock, [&] { return !letters.empty() && letters.front().size() == t.tensor.bytes(); });
          write(t.tensor, letters.front());
          letters.pop_front();
          wire.changed.notify_all();
        }
      }
      for (const Transfer& t : list) {
        if (t.way == Transfer::send) {
          wait(wire, lock, [&] { return wire.letters[{rank, t.peer}].empty(); });
        }
      }
    });
  }

  void close() override {
    const std::lock_guard lock(order_->wire->mutex);
    closed_ = true;
    ++order_->wire->closed;
  }
  void abort() noexcept override {
    const std::lock_guard lock(order_->wire->mutex);
    order_->wire->aborted = true;
    order_->wire->changed.notify_all();
  }

 private:
  using Combine = std::function<void(const std::vector<Bytes>& parts, std::byte* out)>;

  // Calls in the order in which they were made, as NCCL chains the kernels of one connection.
  struct Order {
    std::shared_ptr<FakeWire> wire;
    std::int64_t given = 0, now = 0;
  };

  bool ready_locked() const {
    const FakeWire& wire = *order_->wire;
    if (!wire.broken.empty()) {
      throw Error(wire.broken);
    }
    const std::size_t all = wire.joined.size();
    return wire.connects && std::all_of(wire.joined.begin(), wire.joined.end(), [](bool j) { return j; }) &&
           (!wire.asked_collective.contains(rank_) || wire.asked_collective.size() == all) &&
           std::all_of(pairs_.begin(), pairs_.end(), [&](auto p) { return wire.asked_message.at(p).size() == 2; }) &&
           (!closed_ || wire.closed == static_cast<int>(all));
  }
  // note: what of it is used now.
  void ask(const std::function<void(FakeWire&)>& note) {
    const std::lock_guard lock(order_->wire->mutex);
    require(order_->wire->aborted || ready_locked(), "this connection was used before the last call was ready");
    note(*order_->wire);
  }

  static Bytes read(const Tensor& t) {
    const auto view = t.device().host_view(t, Access::read);
    return {view->data(), view->data() + view->bytes()};
  }
  static void write(const Tensor& t, const Bytes& bytes) {
    const auto view = t.device().host_view(t, Access::write);
    std::copy(bytes.begin(), bytes.end(), view->data());
  }
  static void sum(std::byte* out, const std::vector<Bytes>& parts, std::int64_t first, std::int64_t n, DType dtype,
                  ReduceOp op) {
    std::vector<const void*> sources;
    for (const Bytes& part : parts) {
      sources.push_back(part.data() + static_cast<std::size_t>(first) * size_of(dtype));
    }
    reduce_in_rank_order(out, sources, n, dtype, op);
  }
  template <class Condition>
  static void wait(FakeWire& wire, std::unique_lock<std::mutex>& lock, Condition condition) {
    wire.changed.wait(lock, [&] { return wire.aborted || condition(); });
    require(!wire.aborted, "the connection was aborted");
  }

  template <class Work>
  void in_order(Stream& s, Work work) {
    std::int64_t ticket = 0;
    {
      const std::lock_guard lock(order_->wire->mutex);
      require(!order_->wire->aborted, "the connection was aborted");
      ticket = order_->given++;
    }
    s.host([order = order_, ticket, work] {
      FakeWire& wire = *order->wire;
      std::unique_lock lock(wire.mutex);
      wait(wire, lock, [&] { return order->now == ticket; });
      work(wire, lock);
      ++order->now;
      wire.changed.notify_all();
    });
  }

  void collective(const std::string& kind, const Tensor& out, const Tensor& in, Stream& s, Combine combine) {
    ask([this](FakeWire& wire) { wire.asked_collective.insert(rank_); });
    in_order(s, [=, rank = static_cast<std::size_t>(rank_)](FakeWire& wire, std::unique_lock<std::mutex>& lock) {
      // The last one's parts are gone, and this one is the others' too.
      wait(wire, lock, [&] { return !wire.offered[rank] && wire.taken == 0; });
      wire.offered[rank] = read(in);
      wire.kinds[rank] = kind;
      wire.changed.notify_all();
      wait(wire, lock, [&] {
        return std::all_of(wire.offered.begin(), wire.offered.end(),
                           [&](const auto& o) { return o && o->size() == in.bytes(); }) &&
               std::count(wire.kinds.begin(), wire.kinds.end(), kind) == static_cast<std::ptrdiff_t>(wire.kinds.size());
      });
      std::vector<Bytes> parts;
      for (const auto& offer : wire.offered) {
        parts.push_back(*offer);
      }
      const auto to = out.device().host_view(out, Access::read_write);
      combine(parts, to->data());
      if (++wire.taken == static_cast<int>(parts.size())) {
        wire.taken = 0;
        std::fill(wire.offered.begin(), wire.offered.end(), std::nullopt);
      }
      wire.changed.notify_all();
      wait(wire, lock, [&] { return !wire.offered[rank] || wire.taken == 0; });
    });
  }

  std::shared_ptr<Order> order_;
  int rank_;
  std::set<std::pair<int, int>> pairs_;  // (from, to) of the messages that this end has been asked for
  bool closed_ = false;
};

class FakeNccl final : public NcclApi {
 public:
  FakeNccl(std::shared_ptr<FakeNetwork> network, std::string gpu)
      : network_(std::move(network)), gpu_(std::move(gpu)) {}
  std::string use_gpu() override { return gpu_; }
  ConnectionId new_id() override { return network_->new_id(); }
  std::unique_ptr<NcclConnection> connect(const ConnectionId& id, int size, int rank) override {
    std::shared_ptr<FakeWire> wire = network_->wire(id, size);
    const std::lock_guard lock(mutex_);
    wires_.push_back(wire);
    return std::make_unique<FakeConnection>(std::move(wire), rank);
  }
  void abort_all() noexcept override {
    const std::lock_guard lock(mutex_);
    for (const auto& wire : wires_) {
      const std::lock_guard wire_lock(wire->mutex);
      wire->aborted = true;
      wire->changed.notify_all();
    }
  }

 private:
  std::shared_ptr<FakeNetwork> network_;
  std::string gpu_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<FakeWire>> wires_;  // that this rank has an end of
};

}  // namespace orthant::nccl::test
