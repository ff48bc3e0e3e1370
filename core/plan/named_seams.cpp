#include "core/plan/named_seams.h"

namespace orthant {
namespace {

template <class Seam>
class Named : public Seam {
 public:
  Named(std::unique_ptr<Seam> inner, std::string plugin) : inner_(std::move(inner)), plugin_(std::move(plugin)) {}

 protected:
  template <class Work>
  decltype(auto) call(const char* what, Work&& work) const {
    return as_plugin(plugin_, what, std::forward<Work>(work));
  }
  std::unique_ptr<Seam> inner_;

 private:
  std::string plugin_;
};

class NamedBoundary final : public Named<Boundary> {
 public:
  using Named::Named;
  Tensor forward(Tensor x, Stream& s) override {
    return call("cross a boundary", [&] { return inner_->forward(std::move(x), s); });
  }
  Tensor backward(Tensor dy, Stream& s) override {
    return call("cross a boundary back", [&] { return inner_->backward(std::move(dy), s); });
  }
  Tensor forward_in(int space, Tensor x, Stream& s) override {
    return call("cross a boundary", [&] { return inner_->forward_in(space, std::move(x), s); });
  }
  Tensor backward_in(int space, Tensor dy, Stream& s) override {
    return call("cross a boundary back", [&] { return inner_->backward_in(space, std::move(dy), s); });
  }
};

class NamedExchange final : public Named<TokenExchange> {
 public:
  using Named::Named;
  int chunks() const override { return inner_->chunks(); }
  bool equal_blocks() const override { return inner_->equal_blocks(); }
  ExchangePlan plan(const Tensor& rows_of_expert, Stream& s, const std::function<void()>& meanwhile) override {
    return call("plan an exchange", [&] { return inner_->plan(rows_of_expert, s, meanwhile); });
  }
  ExchangePlan plan_equal(std::int64_t experts, std::int64_t rows) override {
    return call("plan an exchange", [&] { return inner_->plan_equal(experts, rows); });
  }
  void to_experts(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) override {
    call("send rows to experts", [&] { inner_->to_experts(to, rows, plan, chunk, s); });
  }
  void to_tokens(const Tensor& to, const Tensor& rows, const ExchangePlan& plan, int chunk, Stream& s) override {
    call("send rows back", [&] { inner_->to_tokens(to, rows, plan, chunk, s); });
  }
};

class NamedCore final : public Named<AttentionCore> {
 public:
  using Named::Named;
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first, const HeadSinks& sinks,
                 const AttentionShape& shape, Saved& saved, Stream& s) override {
    return call("attend", [&] { return inner_->forward(q, k, v, first, sinks, shape, saved, s); });
  }
  Gradients backward(const Tensor& d_o, const Tensor& first, const HeadSinks& sinks, const AttentionShape& shape,
                     Saved& saved, Stream& s) override {
    return call("go back through attention", [&] { return inner_->backward(d_o, first, sinks, shape, saved, s); });
  }
};

class NamedSchedule final : public Named<Schedule> {
 public:
  using Named::Named;
  std::vector<int> cut(std::span<const double> cost, int stages) const override {
    return call("cut the layers", [&] { return inner_->cut(cost, stages); });
  }
  std::vector<Instr> steps(int stage, int stages, int micro_batches) const override {
    return call("list a stage's steps", [&] { return inner_->steps(stage, stages, micro_batches); });
  }
};

class NamedStash final : public Named<Stash> {
 public:
  using Named::Named;
  void begin_step(std::span<const StashCall> calls, Stream& s) override {
    call("begin a step", [&] { inner_->begin_step(calls, s); });
  }
  void put(int layer, int micro_batch, Saved saved, Stream& s) override {
    call("put activations away", [&] { inner_->put(layer, micro_batch, std::move(saved), s); });
  }
  Saved take(int layer, int micro_batch, Stream& s) override {
    return call("take activations back", [&] { return inner_->take(layer, micro_batch, s); });
  }
  void set_next(Stash& next) override { inner_->set_next(next); }
};

}  // namespace

std::unique_ptr<Boundary> named(std::unique_ptr<Boundary> boundary, const std::string& plugin) {
  return std::make_unique<NamedBoundary>(std::move(boundary), plugin);
}
std::unique_ptr<TokenExchange> named(std::unique_ptr<TokenExchange> exchange, const std::string& plugin) {
  return std::make_unique<NamedExchange>(std::move(exchange), plugin);
}
std::unique_ptr<AttentionCore> named(std::unique_ptr<AttentionCore> core, const std::string& plugin) {
  return std::make_unique<NamedCore>(std::move(core), plugin);
}
std::unique_ptr<Schedule> named(std::unique_ptr<Schedule> schedule, const std::string& plugin) {
  return std::make_unique<NamedSchedule>(std::move(schedule), plugin);
}
std::unique_ptr<Stash> named(std::unique_ptr<Stash> stash, const std::string& plugin) {
  return std::make_unique<NamedStash>(std::move(stash), plugin);
}

}  // namespace orthant
