#include "ring.h"

namespace orthant::sequence {
namespace {

class Ring final : public AttentionCore {
 public:
  Ring(Group& group, std::vector<Places> positions, Device* device)
      : group_(group), positions_(std::move(positions)), position_(positions_.size()) {
    if (device != nullptr) {
      side_ = device->make_side_stream();
    }
  }

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first, const HeadSinks& sinks,
                 const AttentionShape& shape, Saved& saved, Stream& s) override {
    Device& device = s.device();
    place(s);
    const std::vector<Tensor>& keys_at = position_.at(static_cast<std::size_t>(shape.kv_space));
    const Tensor& queries_at = position_.at(static_cast<std::size_t>(shape.space))[own_rank()];
    Tensor o = device.empty(DType::f32, q.shape());  // [T, h c]
    Tensor lse = device.empty(DType::f32, {shape.batch, shape.heads, shape.positions});
    Tensor o_block = device.empty(DType::f32, q.shape()), lse_block = device.empty(DType::f32, lse.shape());
    Tensor kv = pack(k, v, s);
    for (int step = 0; step < group_.size(); ++step) {
      const Shifted next = step + 1 < group_.size() ? shift(kv, s) : Shifted{};
      const bool own = step == 0;
      s.attention_block(own ? o : o_block, own ? lse : lse_block, q, keys(kv), values(kv), queries_at,
                        keys_at[origin(step)], first, shape);
      if (!own) {
        s.attention_merge(o, lse, o_block, lse_block, shape);
      }
      kv = arrived(next, s);
    }
    if (sinks.weight.defined()) {
      s.attention_sinks(o, lse, sinks.weight, shape);
    }
    Tensor out = o;
    if (q.dtype() != DType::f32) {
      out = device.empty(q.dtype(), q.shape());
      s.cast(out, o);
    }
    for (const Tensor& t : {q, k, v, out, lse}) {
      saved.push(t);
    }
    return out;
  }

  // Keys and values go round again; the gradients of a rank's keys and values follow them, one step behind, and each
  // rank adds its share.
  Gradients backward(const Tensor& d_o, const Tensor& first, const HeadSinks& sinks, const AttentionShape& shape,
                     Saved& saved, Stream& s) override {
    Device& device = s.device();
    const Tensor lse = saved.pop(), o = saved.pop(), v = saved.pop(), k = saved.pop(), q = saved.pop();
    const std::vector<Tensor>& keys_at = position_.at(static_cast<std::size_t>(shape.kv_space));
    const Tensor& queries_at = position_.at(static_cast<std::size_t>(shape.space))[own_rank()];
    if (sinks.grad.defined()) {
      s.attention_sinks_backward(sinks.grad, d_o, o, lse, sinks.weight, shape);
    }
    Tensor dq = device.empty(DType::f32, q.shape());
    s.fill(dq, 0);
    Tensor kv = pack(k, v, s), dkv;
    Shifted dkv_next;
    for (int step = 0; step < group_.size(); ++step) {
      const Shifted next = step + 1 < group_.size() ? shift(kv, s) : Shifted{};
      Tensor share = device.empty(DType::f32, kv.shape());
      s.fill(share, 0);
      s.attention_block_backward(dq, keys(share), values(share), d_o, q, keys(kv), values(kv), o, lse, queries_at,
                                 keys_at[origin(step)], first, shape);
      dkv = share;
      if (step > 0) {
        dkv = arrived(dkv_next, s);
        s.add(dkv, share);
      }
      dkv_next = shift(dkv, s);
      kv = arrived(next, s);
    }
    dkv = arrived(dkv_next, s);  // the last step brings them home
    return {as(dq, q.dtype(), s), as(keys(dkv), q.dtype(), s), as(values(dkv), q.dtype(), s)};
  }

 private:
  struct Shifted {
    Tensor tensor;
    std::shared_ptr<Event> event;
  };

  std::size_t own_rank() const { return static_cast<std::size_t>(group_.rank()); }
  // Whose keys and values are here at a step.
  std::size_t origin(int step) const {
    return static_cast<std::size_t>((group_.rank() - step + group_.size()) % group_.size());
  }

  void place(Stream& s) {
    for (std::size_t space = 0; space < positions_.size(); ++space) {
      std::vector<Tensor>& to = position_[space];
      for (std::size_t r = to.size(); r < positions_[space].size(); ++r) {
        to.push_back(s.device().empty(DType::i32, {static_cast<std::int64_t>(positions_[space][r].size())}));
        s.upload(to.back(), positions_[space][r].data());
      }
    }
  }

  // [2 T, kv c]: keys, then values, in one message.
  static Tensor pack(const Tensor& k, const Tensor& v, Stream& s) {
    Tensor kv = s.device().empty(k.dtype(), {2 * k.dim(0), k.dim(1)});
    s.copy(keys(kv), k);
    s.copy(values(kv), v);
    return kv;
  }
  static Tensor keys(const Tensor& kv) { return kv.rows(0, kv.dim(0) / 2); }
  static Tensor values(const Tensor& kv) { return kv.rows(kv.dim(0) / 2, kv.dim(0) / 2); }

  static Tensor as(const Tensor& t, DType dtype, Stream& s) {
    if (t.dtype() == dtype) {
      return t;
    }
    Tensor other = s.device().empty(dtype, t.shape());
    s.cast(other, t);
    return other;
  }

  // To the next rank, from the one before, while the main stream goes on. One collective, so that no rank waits for
  // another's receive.
  Shifted shift(const Tensor& t, Stream& s) {
    const std::size_t n = static_cast<std::size_t>(group_.size());
    std::vector<std::int64_t> send(n, 0), receive(n, 0);
    send[(own_rank() + 1) % n] = t.dim(0);
    receive[(own_rank() + n - 1) % n] = t.dim(0);
    Shifted shifted{s.device().empty(t.dtype(), t.shape()), nullptr};
    side_->wait(s.record());
    group_.all_to_all(shifted.tensor, receive, t, send, *side_);
    shifted.event = side_->record();
    return shifted;
  }
  static Tensor arrived(const Shifted& shifted, Stream& s) {
    if (shifted.event != nullptr) {
      s.wait(shifted.event);
    }
    return shifted.tensor;
  }

  Group& group_;
  std::vector<Places> positions_;
  std::vector<std::vector<Tensor>> position_;  // the same on the device
  std::unique_ptr<Stream> side_;
};

}  // namespace

std::unique_ptr<AttentionCore> make_ring(Group& group, std::vector<Places> positions, Device* device) {
  return std::make_unique<Ring>(group, std::move(positions), device);
}

}  // namespace orthant::sequence
