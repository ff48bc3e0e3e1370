#include "core/plan/default_seams.h"

#include <map>
#include <numeric>
#include <vector>

namespace orthant {
namespace {

class SingleStage final : public Schedule {
 public:
  std::vector<int> cut(std::span<const double> cost, int stages) const override {
    if (stages != 1) {
      throw ConfigError(fmt::format("{} stages need a schedule: load a plugin that binds one", stages));
    }
    return {0, static_cast<int>(cost.size())};
  }
  std::vector<Instr> steps(int, int, int micro_batches) const override {
    std::vector<Instr> program;
    for (int m = 0; m < micro_batches; ++m) {
      program.push_back({Op::load, 0, m});
      program.push_back({Op::forward, 0, m});
      program.push_back({Op::backward, 0, m});
    }
    program.push_back({Op::finish_grads, 0, 0});
    return program;
  }
};

class LocalAttention final : public AttentionCore {
 public:
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first, const HeadSinks& sinks,
                 const AttentionShape& shape, Saved& saved, Stream& s) override {
    Device& device = s.device();
    Tensor o = device.empty(q.dtype(), q.shape());  // [T, h c]
    Tensor lse = device.empty(DType::f32, {shape.batch, shape.heads, shape.positions});
    if (shape.kv_space == shape.space) {
      s.attention(o, lse, q, k, v, first, shape);
    } else {
      const Tensor wide = device.empty(DType::f32, q.shape());
      s.attention_block(wide, lse, q, k, v, places(shape.positions, s), places(shape.kv_positions, s), first, shape);
      s.cast(o, wide);
    }
    if (sinks.weight.defined()) {
      s.attention_sinks(o, lse, sinks.weight, shape);
    }
    for (const Tensor& t : {q, k, v, o, lse}) {
      saved.push(t);
    }
    return o;
  }
  Gradients backward(const Tensor& d_o, const Tensor& first, const HeadSinks& sinks, const AttentionShape& shape,
                     Saved& saved, Stream& s) override {
    const Tensor lse = saved.pop();
    Tensor qkvo[4];
    for (int i = 3; i >= 0; --i) {
      qkvo[i] = saved.pop();
    }
    if (sinks.grad.defined()) {
      s.attention_sinks_backward(sinks.grad, d_o, qkvo[3], lse, sinks.weight, shape);
    }
    Device& device = s.device();
    Gradients g{device.empty(qkvo[0].dtype(), qkvo[0].shape()), device.empty(qkvo[1].dtype(), qkvo[1].shape()),
                device.empty(qkvo[2].dtype(), qkvo[2].shape())};
    if (shape.kv_space == shape.space) {
      s.attention_backward(g.dq, g.dk, g.dv, d_o, qkvo[0], qkvo[1], qkvo[2], qkvo[3], lse, first, shape);
      return g;
    }
    const Tensor* const narrow[] = {&g.dq, &g.dk, &g.dv};
    Tensor wide[3];
    for (int i = 0; i < 3; ++i) {
      wide[i] = device.empty(DType::f32, qkvo[i].shape());
      s.fill(wide[i], 0);
    }
    s.attention_block_backward(wide[0], wide[1], wide[2], d_o, qkvo[0], qkvo[1], qkvo[2], qkvo[3], lse,
                               places(shape.positions, s), places(shape.kv_positions, s), first, shape);
    for (int i = 0; i < 3; ++i) {
      s.cast(*narrow[i], wide[i]);
    }
    return g;
  }

 private:
  // i32 [positions]: 0, 1, ...
  const Tensor& places(std::int64_t positions, Stream& s) {
    Tensor& known = places_[positions];
    if (!known.defined()) {
      std::vector<std::int32_t> place(static_cast<std::size_t>(positions));
      std::iota(place.begin(), place.end(), 0);
      known = s.device().empty(DType::i32, {positions});
      s.upload(known, place.data());
    }
    return known;
  }

  std::map<std::int64_t, Tensor> places_;
};

class MemoryStash final : public Stash {
 public:
  void begin_step(std::span<const StashCall>, Stream&) override { kept_.clear(); }
  void put(int layer, int micro_batch, Saved saved, Stream&) override {
    kept_[{layer, micro_batch}] = std::move(saved);
  }
  Saved take(int layer, int micro_batch, Stream&) override {
    auto node = kept_.extract({layer, micro_batch});
    require(!node.empty(), "nothing is stashed for layer {} of micro-batch {}", layer, micro_batch);
    return std::move(node.mapped());
  }

 private:
  std::map<std::pair<int, int>, Saved> kept_;
};

}  // namespace

std::unique_ptr<Schedule> make_single_stage_schedule() {
  return std::make_unique<SingleStage>();
}
std::unique_ptr<AttentionCore> make_local_attention() {
  return std::make_unique<LocalAttention>();
}
std::unique_ptr<Stash> make_memory_stash() {
  return std::make_unique<MemoryStash>();
}

}  // namespace orthant
