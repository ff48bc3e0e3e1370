// make_host_group: a Group of tensors over a HostChannel of bytes.
#include <orthant/device.h>
#include <orthant/group_base.h>
#include <orthant/host_channel.h>
#include <orthant/ops.h>

namespace orthant {
namespace {

class HostGroup final : public GroupBase {
 public:
  HostGroup(std::string name, int rank, std::vector<int> members, std::shared_ptr<HostChannel> channel)
      : GroupBase(std::move(name), rank, std::move(members)), channel_(std::move(channel)) {}

 private:
  void do_all_reduce(const Tensor& t, ReduceOp op, Stream& s) override {
    s.host([c = channel_, t, op] {
      const auto view = t.device().host_view(t, Access::read_write);
      c->all_reduce(view->data(), t.elements(), t.dtype(), op);
    });
  }

  void do_all_gather(const Tensor& out, const Tensor& in, Stream& s) override {
    s.host([c = channel_, out, in] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.device().host_view(out, Access::write);
      c->all_gather(to->data(), from->data(), in.elements(), in.dtype());
    });
  }

  void do_reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, Stream& s) override {
    s.host([c = channel_, out, in, op] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.device().host_view(out, Access::write);
      c->reduce_scatter(to->data(), from->data(), out.elements(), in.dtype(), op);
    });
  }

  void do_all_to_all(const Tensor& out, const Tensor& in, const Exchange& counts, Stream& s) override {
    s.host([c = channel_, out, in, counts] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.device().host_view(out, Access::write);
      c->all_to_all(to->data(), counts.recv, from->data(), counts.send, in.dtype());
    });
  }

  void do_broadcast(const Tensor& t, int root, Stream& s) override {
    s.host([c = channel_, t, root] {
      const auto view = t.device().host_view(t, c->rank() == root ? Access::read : Access::write);
      c->broadcast(view->data(), t.elements(), t.dtype(), root);
    });
  }

  void do_reduce(const Tensor& t, ReduceOp op, int root, Stream& s) override {
    s.host([c = channel_, t, op, root] {
      const auto view = t.device().host_view(t, c->rank() == root ? Access::read_write : Access::read);
      c->reduce(view->data(), t.elements(), t.dtype(), op, root);
    });
  }

  void do_gather(const Tensor& out, const Tensor& in, int root, Stream& s) override {
    s.host([c = channel_, out = rank() == root ? out : Tensor(), in, root] {
      const auto from = in.device().host_view(in, Access::read);
      const auto to = out.defined() ? out.device().host_view(out, Access::write) : nullptr;
      c->gather(to ? to->data() : nullptr, from->data(), in.elements(), in.dtype(), root);
    });
  }

  void do_scatter(const Tensor& out, const Tensor& in, int root, Stream& s) override {
    s.host([c = channel_, out, in = rank() == root ? in : Tensor(), root] {
      const auto from = in.defined() ? in.device().host_view(in, Access::read) : nullptr;
      const auto to = out.device().host_view(out, Access::write);
      c->scatter(to->data(), from ? from->data() : nullptr, out.elements(), out.dtype(), root);
    });
  }

  void do_send(const Tensor& t, int to, Stream& s) override {
    s.host([c = channel_, t, to] {
      const auto view = t.device().host_view(t, Access::read);
      c->send(view->data(), t.elements(), t.dtype(), to);
    });
  }

  void do_recv(const Tensor& t, int from, Stream& s) override {
    s.host([c = channel_, t, from] {
      const auto view = t.device().host_view(t, Access::write);
      c->recv(view->data(), t.elements(), t.dtype(), from);
    });
  }

  void do_barrier(Stream& s) override {
    s.host([c = channel_] { c->barrier(); });
  }

  std::shared_ptr<HostChannel> channel_;
};

}  // namespace

std::unique_ptr<Group> make_host_group(std::string name, int rank, std::vector<int> members,
                                       std::shared_ptr<HostChannel> channel) {
  require(channel != nullptr || members.size() == 1, "group '{}' of {} members needs a channel", name, members.size());
  return std::make_unique<HostGroup>(std::move(name), rank, std::move(members), std::move(channel));
}

}  // namespace orthant
