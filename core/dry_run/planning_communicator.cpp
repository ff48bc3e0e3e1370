#include "core/dry_run/planning_communicator.h"

#include <algorithm>
#include <cstring>

#include <orthant/device.h>
#include <orthant/host_channel.h>
#include <orthant/ops.h>

#include "core/dry_run/meta_device.h"

namespace orthant {
namespace {

class PlanningGroup final : public Group {
 public:
  PlanningGroup(std::string name, std::vector<int> members, int rank, std::size_t index, CollectiveRecord& record)
      : name_(std::move(name)), members_(std::move(members)), rank_(rank), index_(index), record_(record) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  void all_reduce(const Tensor& t, ReduceOp op, Stream&) override {
    write("all_reduce", t, bytes(t), bytes(t), 2 * bytes(t) * others() / size());
    if (holds_data(t)) {
      reduce_copies(t.data(), t.data(), t, op);
    }
  }

  void all_gather(const Tensor& out, const Tensor& in, Stream&) override {
    write("all_gather", in, bytes(in), bytes(out), bytes(in) * others());
    for (int r = 0; holds_data(out) && holds_data(in) && r < size(); ++r) {
      std::memmove(out.as<std::byte>() + static_cast<std::size_t>(r) * in.bytes(), in.data(), in.bytes());
    }
  }

  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream&) override {
    write("reduce_scatter", in, bytes(in), bytes(out), bytes(out) * others());
    if (holds_data(out) && holds_data(in)) {
      reduce_copies(out.data(), in.as<std::byte>() + static_cast<std::size_t>(rank_) * out.bytes(), out, op);
    }
  }

  void all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                  std::span<const std::int64_t> send_rows, Stream&) override {
    require(send_rows.size() == members_.size() && recv_rows.size() == members_.size(),
            "all_to_all of group '{}': {} send counts and {} receive counts for {} members", name_, send_rows.size(),
            recv_rows.size(), size());
    const std::int64_t row = in.dim(0) > 0 ? bytes(in) / in.dim(0) : 0;
    const std::size_t own = static_cast<std::size_t>(rank_);
    std::int64_t sent = 0, received = 0, before_own = 0;
    for (std::size_t r = 0; r < members_.size(); ++r) {
      before_own += r < own ? send_rows[r] * row : 0;
      sent += send_rows[r] * row;
      received += recv_rows[r] * row;
    }
    write("all_to_all", in, sent, received, sent - send_rows[own] * row);
    if (!holds_data(out) || !holds_data(in)) {
      return;
    }
    auto* to = out.as<std::byte>();
    for (std::size_t r = 0; r < members_.size(); ++r) {
      const std::int64_t rows = std::min(recv_rows[r], send_rows[own]);
      std::memcpy(to, in.as<std::byte>() + before_own, static_cast<std::size_t>(rows * row));
      to += recv_rows[r] * row;
    }
  }

  void broadcast(const Tensor& t, int, Stream&) override {
    write("broadcast", t, bytes(t), bytes(t), bytes(t) * others() / size());
  }
  void reduce(const Tensor& t, ReduceOp op, int root, Stream&) override {
    write("reduce", t, bytes(t), bytes(t), bytes(t) * others() / size());
    if (rank_ == root && holds_data(t)) {
      reduce_copies(t.data(), t.data(), t, op);
    }
  }
  void gather(const Tensor& out, const Tensor& in, int root, Stream&) override {
    write("gather", in, bytes(in), rank_ == root ? bytes(out) : 0, rank_ == root ? 0 : bytes(in));
  }
  void scatter(const Tensor& out, const Tensor& in, int root, Stream&) override {
    write("scatter", out, rank_ == root ? bytes(in) : 0, bytes(out), rank_ == root ? bytes(out) * others() : 0);
  }
  void send(const Tensor& t, int, Stream&) override { write("send", t, bytes(t), 0, bytes(t)); }
  void recv(const Tensor& t, int, Stream&) override { write("recv", t, 0, bytes(t), 0); }
  void barrier(Stream&) override {
    record_.calls.push_back({.group = index_, .operation = "barrier", .dtype = DType::u8});
  }

 private:
  static std::int64_t bytes(const Tensor& t) { return static_cast<std::int64_t>(t.bytes()); }
  std::int64_t others() const { return size() - 1; }

  void write(const char* operation, const Tensor& t, std::int64_t in, std::int64_t out, std::int64_t sent) {
    require(t.defined(), "{} of group '{}' was given an undefined tensor", operation, name_);
    record_.calls.push_back({.group = index_,
                             .operation = operation,
                             .dtype = t.dtype(),
                             .bytes_in = in,
                             .bytes_out = out,
                             .bytes_sent = sent});
  }

  // out = the reduction of size() copies of `in`, both like `t`.
  void reduce_copies(void* out, const void* in, const Tensor& t, ReduceOp op) const {
    std::vector<std::byte> own(t.bytes());
    std::memcpy(own.data(), in, own.size());
    const std::vector<const void*> sources(members_.size(), own.data());
    reduce_in_rank_order(out, sources, t.elements(), t.dtype(), op);
  }

  std::string name_;
  std::vector<int> members_;
  int rank_;
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
