// make_host_group: a Group of tensors over a HostChannel of bytes.
#include <orthant/device.h>
#include <orthant/host_channel.h>
#include <orthant/ops.h>

#include <numeric>

namespace orthant {
namespace {

class HostGroup final : public Group {
 public:
  HostGroup(std::string name, int rank, std::vector<int> members, std::shared_ptr<HostChannel> channel)
      : name_(std::move(name)), rank_(rank), members_(std::move(members)), channel_(std::move(channel)) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  void all_reduce(const Tensor& t, ReduceOp op, Stream& s) override {
    check(t, "all_reduce");
    check_reducible(t, "all_reduce");
    if (size() > 1) {
      s.host([c = channel_, t, op] {
        const auto view = t.device().host_view(t, Access::read_write);
        c->all_reduce(view->data(), t.elements(), t.dtype(), op);
      });
    }
  }

  void all_gather(const Tensor& out, const Tensor& in, Stream& s) override {
    check_blocks(out, in, "all_gather", "out", "in");
    if (size() == 1) {
      return copy_unless_same(out, in, s);
    }
    s.host([c = channel_, out, in] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.device().host_view(out, Access::write);
      c->all_gather(to->data(), from->data(), in.elements(), in.dtype());
    });
  }

  void reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) override {
    check_blocks(in, out, "reduce_scatter", "in", "out");
    check_reducible(in, "reduce_scatter");
    if (size() == 1) {
      return copy_unless_same(out, in, s);
    }
    s.host([c = channel_, out, in, op] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.device().host_view(out, Access::write);
      c->reduce_scatter(to->data(), from->data(), out.elements(), in.dtype(), op);
    });
  }

  void all_to_all(const Tensor& out, std::span<const std::int64_t> recv_rows, const Tensor& in,
                  std::span<const std::int64_t> send_rows, Stream& s) override {
    check(out, "all_to_all");
    check(in, "all_to_all");
    std::vector<std::int64_t> send = elements_of(in, send_rows, "in", "send_rows");
    std::vector<std::int64_t> recv = elements_of(out, recv_rows, "out", "recv_rows");
    require(out.dtype() == in.dtype() && row_elements(out) == row_elements(in),
            "all_to_all of group '{}': rows of in ({} {}) and out ({} {}) differ", name_, name_of(in.dtype()),
            in.shape().to_string(), name_of(out.dtype()), out.shape().to_string());
    if (size() == 1) {
      require(send[0] == recv[0], "all_to_all of group '{}': {} elements sent but {} expected", name_, send[0],
              recv[0]);
      return copy_unless_same(out, in, s);
    }
    s.host([c = channel_, out, in, send = std::move(send), recv = std::move(recv)] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.device().host_view(out, Access::write);
      c->all_to_all(to->data(), recv, from->data(), send, in.dtype());
    });
  }

  void broadcast(const Tensor& t, int root, Stream& s) override {
    check(t, "broadcast");
    check_member(root, "broadcast", "root");
    if (size() > 1) {
      s.host([c = channel_, t, root] {
        const auto view = t.device().host_view(t, c->rank() == root ? Access::read : Access::write);
        c->broadcast(view->data(), t.elements(), t.dtype(), root);
      });
    }
  }

  void reduce(const Tensor& t, ReduceOp op, int root, Stream& s) override {
    check(t, "reduce");
    check_reducible(t, "reduce");
    check_member(root, "reduce", "root");
    if (size() > 1) {
      s.host([c = channel_, t, op, root] {
        const auto view = t.device().host_view(t, c->rank() == root ? Access::read_write : Access::read);
        c->reduce(view->data(), t.elements(), t.dtype(), op, root);
      });
    }
  }

  void gather(const Tensor& out, const Tensor& in, int root, Stream& s) override {
    check(in, "gather");
    check_member(root, "gather", "root");
    if (rank_ == root) {
      check_blocks(out, in, "gather", "out", "in");
    }
    if (size() == 1) {
      return copy_unless_same(out, in, s);
    }
    s.host([c = channel_, out = rank_ == root ? out : Tensor(), in, root] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.defined() ? out.device().host_view(out, Access::write) : nullptr;
      c->gather(to ? to->data() : nullptr, from->data(), in.elements(), in.dtype(), root);
    });
  }

  void scatter(const Tensor& out, const Tensor& in, int root, Stream& s) override {
    check(out, "scatter");
    check_member(root, "scatter", "root");
    if (rank_ == root) {
      check_blocks(in, out, "scatter", "in", "out");
    }
    if (size() == 1) {
      return copy_unless_same(out, in, s);
    }
    s.host([c = channel_, out, in = rank_ == root ? in : Tensor(), root] {
      const auto from = in.defined() ? in.device().host_view(in, Access::read) : nullptr;
      const auto to = out.device().host_view(out, Access::write);
      c->scatter(to->data(), from ? from->data() : nullptr, out.elements(), out.dtype(), root);
    });
  }

  void send(const Tensor& t, int to, Stream& s) override {
    check(t, "send");
    check_peer(to, "send");
    s.host([c = channel_, t, to] {
      const auto view = t.device().host_view(t, Access::read);
      c->send(view->data(), t.elements(), t.dtype(), to);
    });
  }

  void recv(const Tensor& t, int from, Stream& s) override {
    check(t, "recv");
    check_peer(from, "recv");
    s.host([c = channel_, t, from] {
      const auto view = t.device().host_view(t, Access::write);
      c->recv(view->data(), t.elements(), t.dtype(), from);
    });
  }

  void barrier(Stream& s) override {
    if (size() > 1) {
      s.host([c = channel_] { c->barrier(); });
    }
  }

 private:
  void check(const Tensor& t, const char* call) const {
    require(t.defined(), "{} of group '{}' was given an undefined tensor", call, name_);
  }
  void check_reducible(const Tensor& t, const char* call) const {
    require(t.dtype() != DType::u8, "{} of group '{}': u8 tensors can be moved but not reduced", call, name_);
  }
  void check_member(int rank, const char* call, const char* role) const {
    require(rank >= 0 && rank < size(), "{} of group '{}': {} {} is not one of its {} members", call, name_, role, rank,
            size());
  }
  void check_peer(int peer, const char* call) const {
    check_member(peer, call, "peer");
    require(peer != rank_, "{} of group '{}': rank {} cannot be its own peer", call, name_, rank_);
  }
  void check_blocks(const Tensor& whole, const Tensor& block, const char* call, const char* whole_name,
                    const char* block_name) const {
    check(whole, call);
    check(block, call);
    require(whole.dtype() == block.dtype() && whole.elements() == block.elements() * size(),
            "{} of group '{}': {} ({} {}) must have {} times the elements of {} ({} {})", call, name_, whole_name,
            name_of(whole.dtype()), whole.shape().to_string(), size(), block_name, name_of(block.dtype()),
            block.shape().to_string());
  }

  static std::int64_t row_elements(const Tensor& t) {
    std::int64_t n = 1;
    for (int i = 1; i < t.rank(); ++i) {
      n *= t.dim(i);
    }
    return n;
  }
  std::vector<std::int64_t> elements_of(const Tensor& t, std::span<const std::int64_t> rows, const char* tensor_name,
                                        const char* counts_name) const {
    require(rows.size() == members_.size(), "all_to_all of group '{}': {} has {} entries for {} members", name_,
            counts_name, rows.size(), size());
    std::vector<std::int64_t> elements;
    std::int64_t total = 0;
    for (const std::int64_t r : rows) {
      require(r >= 0, "all_to_all of group '{}': {} has a negative entry {}", name_, counts_name, r);
      total += r;
      elements.push_back(r * row_elements(t));
    }
    require(t.rank() > 0 && total <= t.dim(0), "all_to_all of group '{}': {} sums to {} rows but {} is {}", name_,
            counts_name, total, tensor_name, t.shape().to_string());
    return elements;
  }

  void copy_unless_same(const Tensor& out, const Tensor& in, Stream& s) const {
    if (out.data() != in.data()) {
      s.copy(out, in);
    }
  }

  std::string name_;
  int rank_;
  std::vector<int> members_;
  std::shared_ptr<HostChannel> channel_;
};

}  // namespace

std::unique_ptr<Group> make_host_group(std::string name, int rank, std::vector<int> members,
                                       std::shared_ptr<HostChannel> channel) {
  require(channel != nullptr || members.size() == 1, "group '{}' of {} members needs a channel", name, members.size());
  return std::make_unique<HostGroup>(std::move(name), rank, std::move(members), std::move(channel));
}

}  // namespace orthant
