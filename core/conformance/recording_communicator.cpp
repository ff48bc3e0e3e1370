#include "core/conformance/recording_communicator.h"

#include <fmt/ranges.h>

namespace orthant {
namespace {

class RecordingGroup final : public Group {
 public:
  RecordingGroup(std::unique_ptr<Group> inner, std::string label, int world_rank, CallRecord& record)
      : inner_(std::move(inner)), label_(std::move(label)), world_rank_(world_rank), record_(record) {}

  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::vector<int>& members() const override { return inner_->members(); }

  void all_reduce(const Tensor& t, ReduceOp op, Stream& s) override {
    write("all_reduce", t);
    inner_->all_reduce(t, op, s);
  }
  void all_gather(const Tensor& out, const Tensor& in, Stream& s) override {
    write("all_gather", in);
    inner_->all_gather(out, in, s);
  }
  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) override {
    write("reduce_scatter", out);
    inner_->reduce_scatter(out, in, op, s);
  }
  void all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                  std::span<const std::int64_t> send_rows, Stream& s) override {
    write(fmt::format("all_to_all {}", name_of(in.dtype())));
    const std::int64_t rows = in.dim(0), bytes = static_cast<std::int64_t>(in.bytes());
    std::int64_t others = 0;
    for (int r = 0; r < size(); ++r) {
      others += r == rank() ? 0 : send_rows[static_cast<std::size_t>(r)];
    }
    {
      const std::lock_guard lock(record_.mutex);
      record_.exchanged[label_][world_rank_].push_back(rows == 0 ? 0 : others * (bytes / rows));
    }
    inner_->all_to_all(out, recv_rows, in, send_rows, s);
  }
  void broadcast(const Tensor& t, int root, Stream& s) override {
    write("broadcast", t);
    inner_->broadcast(t, root, s);
  }
  void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) override {
    write("reduce", t);
    inner_->reduce(t, op, root, s);
  }
  void gather(const Tensor& out, const Tensor& in, int root, Stream& s) override {
    write("gather", in);
    inner_->gather(out, in, root, s);
  }
  void scatter(const Tensor& out, const Tensor& in, int root, Stream& s) override {
    write("scatter", out);
    inner_->scatter(out, in, root, s);
  }
  void send(const Tensor& t, int to, Stream& s) override {
    {
      const std::lock_guard lock(record_.mutex);
      record_.exchanged[label_][world_rank_].push_back(static_cast<std::int64_t>(t.bytes()));
    }
    inner_->send(t, to, s);
  }
  void recv(const Tensor& t, int from, Stream& s) override { inner_->recv(t, from, s); }
  void barrier(Stream& s) override {
    write("barrier");
    inner_->barrier(s);
  }

 private:
  void write(const char* call, const Tensor& t) {
    write(fmt::format("{} {} {}", call, name_of(t.dtype()), t.elements()));
  }
  void write(std::string call) {
    const std::lock_guard lock(record_.mutex);
    record_.calls[label_][world_rank_].push_back(std::move(call));
    record_.members[label_] = inner_->members().size();
  }

  std::unique_ptr<Group> inner_;
  std::string label_;
  int world_rank_;
  CallRecord& record_;
};

}  // namespace

std::unique_ptr<Group> RecordingCommunicator::split(const std::string& name, const std::vector<int>& members) {
  std::string label = fmt::format("{} #{} [{}]", name, splits_++, fmt::join(members, " "));
  return std::make_unique<RecordingGroup>(inner_.split(name, members), std::move(label), inner_.rank(), record_);
}

}  // namespace orthant
