// A data axis with manners that the conformance suite must notice. [plugins.rude] size, fault:
//   none        right
//   claims      claims twice the ranks it was asked for
//   crash       crashes when it claims
//   boundary    passes activations on, and twice their gradients
//   order       the first rank sums where the others take the maximum
//   alone       the first rank broadcasts, and no other listens
//   unguarded   reads a tensor's memory by itself
//   unstable    scales gradients a little differently each time
//   forgets     scales gradients by what it counted itself, which no checkpoint holds
//   waits       sums on the main stream what two stages hold, while layers run
//   greedy      sums twice where it is asked before another axis's keeper
//   memory      keeps a tensor for ever
//   thread      leaves a thread behind
//   endless     never ends its claim
//   stash       right: copies what is put by a side stream, and gives back the copies
//   stash_put   the same, but the side stream does not wait for what writes the activations
//   stash_take  the same, but the main stream does not wait for the copies
//   throws      throws what is no Error of Orthant's from a boundary
//   number      throws a number from there
#include <orthant/plugin.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace {

using namespace orthant;

class RudeBoundary final : public Boundary {
 public:
  explicit RudeBoundary(std::string fault) : fault_(std::move(fault)) {}
  Tensor forward(Tensor x, Stream&) override {
    if (fault_ == "throws") {
      throw std::out_of_range("map::at");
    }
    if (fault_ == "number") {
      throw 42;
    }
    if (fault_ == "unguarded") {
      const volatile float first = *x.as<float>();
      (void)first;
    }
    return x;
  }
  Tensor backward(Tensor dy, Stream& s) override {
    if (fault_ == "boundary") {
      s.scale(dy, 2);
    }
    return dy;
  }

 private:
  std::string fault_;
};

class RudeStash final : public Stash {
 public:
  RudeStash(Device& device, std::string fault) : fault_(std::move(fault)), side_(device.make_side_stream()) {}
  void put(int layer, int micro_batch, Saved saved, Stream& s) override {
    if (fault_ != "stash_put") {
      side_->wait(s.record());
    }
    for (Tensor& t : saved.tensors) {
      if (t.defined()) {
        const Tensor copy = s.device().empty(t.dtype(), t.shape());
        side_->copy(copy, t);
        t = copy;
      }
    }
    written_ = side_->record();
    next().put(layer, micro_batch, std::move(saved), s);
  }
  Saved take(int layer, int micro_batch, Stream& s) override {
    if (fault_ != "stash_take") {
      s.wait(written_);
    }
    return next().take(layer, micro_batch, s);
  }

 private:
  std::string fault_;
  std::shared_ptr<Event> written_;
  std::unique_ptr<Stream> side_;
};

class RudeKeeper final : public Keeper {
 public:
  RudeKeeper(Group& group, std::string fault) : group_(group), fault_(std::move(fault)) {}
  std::vector<StateSpec> state(const ParamGroup&) const override { return {}; }
  void grad_ready(ParamGroup& group, const HookContext& at) override {
    Stream& s = at.stream;
    static std::atomic<int> calls = 0;
    if (fault_ == "forgets") {
      s.scale(group.grad, 1 + 1e-2f * static_cast<float>(steps_));
    }
    if (fault_ == "waits" && group.scattered) {
      const Tensor t = s.device().empty(DType::f32, {4});
      s.fill(t, 0);
      group.sum->all_reduce(t, ReduceOp::sum, s);
    }
    if (fault_ == "unstable" && group_.rank() == 0) {
      s.scale(group.grad, 1 + 1e-6f * static_cast<float>(++calls % 7));
    }
    if (fault_ == "memory") {
      static auto* kept = new std::vector<Tensor>();  // never deleted: the tensor outlives its device
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      kept->push_back(s.device().empty(DType::f32, {4}));
    }
  }
  Sums sums() const override { return fault_ == "greedy" ? Sums::rest : Sums::none; }
  bool sum_grads(ParamGroup& group, const HookContext& at) override {
    if (fault_ != "greedy" || group.scattered || group.sum->size() == group_.size()) {
      return false;
    }
    group.sum->all_reduce(group.grad, ReduceOp::sum, at.stream);
    group.sum->all_reduce(group.grad, ReduceOp::sum, at.stream);
    return true;
  }
  void finish_sums(const HookContext& at) override {
    Stream& s = at.stream;
    ++steps_;
    if (fault_ == "order") {
      const Tensor t = s.device().empty(DType::f32, {4});
      s.fill(t, 0);
      group_.all_reduce(t, group_.rank() == 0 ? ReduceOp::sum : ReduceOp::max, s);
    }
    if (fault_ == "alone" && group_.rank() == 0 && calls_++ == 0) {
      const Tensor t = s.device().empty(DType::f32, {4});
      s.fill(t, 0);
      group_.broadcast(t, 0, s);
    }
  }

 private:
  Group& group_;
  std::string fault_;
  int calls_ = 0;
  int steps_ = 0;
};

class Rude final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override {
#ifdef RUDE_KEYS
    const char* help = "";
#else
    const char* help = "What is wrong.";
#endif
    return {{.name = "size", .default_value = std::int64_t{1}, .help = "Ranks that split the batch.", .minimum = 1},
            {.name = "fault", .default_value = std::string("none"), .help = help}};
  }
  void claim(Mesh& mesh, const Table& config) override {
    fault_ = config.text("fault");
    if (fault_ == "crash") {
      std::abort();
    }
    while (fault_ == "endless") {
      std::this_thread::yield();
    }
    const int size = static_cast<int>(config.integer("size"));
    axis_ = mesh.claim({.name = "rude", .size = fault_ == "claims" ? 2 * size : size, .splits = {Dim::batch}});
  }
  void plan(Plan& plan, Mesh& mesh) override {
    plan.bind({Region::attention, Side::enter}, std::make_unique<RudeBoundary>(fault_), Dim::batch);
    plan.chain(std::make_unique<RudeKeeper>(mesh.group(axis_), fault_));
    if (fault_.starts_with("stash") && !plan.dry()) {
      plan.chain(std::make_unique<RudeStash>(plan.device(), fault_));
    }
    if (fault_ == "thread" && !plan.dry()) {
      std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
    }
  }

 private:
  AxisId axis_ = 0;
  std::string fault_;
};

}  // namespace

ORTHANT_PLUGIN("rude", Rude)
