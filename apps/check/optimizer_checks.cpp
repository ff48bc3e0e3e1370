#include "apps/check/optimizer_checks.h"

#include <orthant/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/arch/links.h"
#include "core/layers/parameter_state.h"

namespace orthant {
namespace {

using Bytes = std::vector<std::byte>;

// One parameter of one rank, with an optimizer that updates it in slices.
class Subject {
 public:
  Subject(const Settings& settings, const std::string& optimizer, const ParamSpec& spec, const char* device)
      : settings_(settings),
        optimizer_(settings.catalogue->get<Optimizer>(optimizer)),
        spec_(spec),
        treatment_(treatment_of(spec, settings)),
        device_(make_device(device, 1)),
        stream_(device_->make_main_stream()) {
    const Shape n{spec.global.elements()};
    master_ = numbers(n, 0);
    weight_ = device_->empty(DType::bf16, n);
    stream_->cast(weight_, master_);
    for (const OptimizerState& state : own_states(treatment_)) {
      state_.push_back(
          device_->empty(state.dtype, state.over == StateOver::elements ? n : shape_over(state.over, spec.global)));
      stream_->fill(state_.back(), 0);
    }
  }

  // One step, in slices that begin at `cuts`, the last of which is the end. `grad_scale`: of the made-up gradient.
  void step(int number, const std::vector<std::int64_t>& cuts, double factor, float grad_scale = 1) {
    const Tensor grad = numbers({spec_.global.elements()}, number + 1);
    if (grad_scale == 0) {
      stream_->fill(grad, 0);  // no -0
    } else {
      stream_->scale(grad, grad_scale);
    }
    UpdateStep step = plain_step(number);
    step.factor = scalar(factor);
    step.finite = scalar(std::isnan(factor) ? factor : 1);
    Tensor whole;
    if (!treatment_.measures.empty()) {
      measured_step(grad, step, cuts);
      stream_->synchronize();
      return;
    }
    if (treatment_.whole) {
      whole = device_->empty(DType::f32, {grad.elements()});
      each(cuts, [&](std::int64_t begin, std::int64_t count) {
        optimizer_.prepare(whole.slice(begin, {count}), slice(grad, {}, begin, count), step, *stream_);
      });
      optimizer_.transform(whole.view(spec_.global), step, *stream_);
    }
    each(cuts, [&](std::int64_t begin, std::int64_t count) {
      optimizer_.update(slice(grad, whole, begin, count), step, *stream_);
    });
    stream_->synchronize();
  }

  // The same steps with a gradient of zeros, made up for at once.
  void replay(const std::vector<int>& numbers, const std::vector<std::int64_t>& cuts) {
    std::vector<UpdateStep> missed;
    for (const int number : numbers) {
      missed.push_back(plain_step(number));
    }
    each(cuts, [&](std::int64_t begin, std::int64_t count) {
      optimizer_.replay(slice({}, {}, begin, count), missed, *stream_);
    });
    stream_->synchronize();
  }
  bool replays() const { return treatment_.replays; }

  std::vector<Bytes> values() {
    std::vector<Bytes> all;
    for (const Tensor& t : tensors()) {
      all.emplace_back(t.bytes());
      stream_->download(all.back().data(), t);
    }
    return all;
  }
  void restore(const std::vector<Bytes>& values) {
    std::size_t next = 0;
    for (const Tensor& t : tensors()) {
      stream_->upload(t, values.at(next++).data());
    }
  }

  // What differs first; empty: nothing.
  std::string difference(const std::vector<Bytes>& a, const std::vector<Bytes>& b) const {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(a[i].data(), b[i].data(), a[i].size()) != 0) {
        return i == 0   ? "the weights"
               : i == 1 ? "the weights in bf16"
                        : fmt::format("state '{}'", treatment_.states[i - 2].name);
      }
    }
    return "";
  }
  // Whether the bf16 weights are the master weights, rounded.
  bool weight_is_master() {
    const Tensor rounded = device_->empty(DType::bf16, weight_.shape());
    stream_->cast(rounded, master_);
    Bytes expected(rounded.bytes()), found(weight_.bytes());
    stream_->download(expected.data(), rounded);
    stream_->download(found.data(), weight_);
    return expected == found;
  }
  std::int64_t elements() const { return spec_.global.elements(); }

  // The first state that is said to be never negative (StateCode::positive), and is; empty: none.
  std::string negative_state() {
    const std::vector<OptimizerState> said = optimizer_.treatment(spec_, settings_.optimizer).states;
    for (std::size_t i = 0; i < said.size(); ++i) {
      std::vector<float> values(said[i].code == StateCode::positive ? state_[i].elements() : 0);
      if (!values.empty()) {
        stream_->download(values.data(), state_[i]);
      }
      if (std::any_of(values.begin(), values.end(), [](float x) { return x < 0; })) {
        return said[i].name;
      }
    }
    return "";
  }

 private:
  // Without factor and finite. The rate changes from step to step.
  UpdateStep plain_step(int number) const {
    return {.settings = settings_.optimizer,
            .step = number,
            .lr = settings_.optimizer.lr / (1 + number),
            .weight_decay = spec_.decay ? settings_.optimizer.weight_decay : 0,
            .method = treatment_.method,
            .factor = {},
            .finite = {},
            .shape = spec_.global};
  }

  // Rectangles of rows and columns, as the elements between two cuts make them up.
  template <class Visit>
  void each_rectangle(const std::vector<std::int64_t>& cuts, Visit visit) const {
    ParamGroup group;
    Param p{.spec = spec_};
    p.size[0] = spec_.global[0];
    p.size[1] = spec_.global.rank() == 2 ? spec_.global[1] : 1;
    each(cuts, [&](std::int64_t begin, std::int64_t count) {
      group.owned_begin = begin;
      group.owned_elements = group.padded = count;
      for (const OwnedPiece& piece : owned_pieces(group, p, begin, begin + count)) {
        visit(begin + piece.begin, piece);
      }
    });
  }
  UpdateSlice rectangle(const Tensor& grad, const std::vector<Measured>& known, std::int64_t at,
                        const OwnedPiece& piece) const {
    const Shape shape{piece.size[0], piece.size[1]};
    const auto part = [&](const Tensor& t, StateOver over) {
      return !t.defined()                   ? Tensor()
             : over == StateOver::rows      ? t.slice(piece.offset[0], {piece.size[0]})
             : over == StateOver::columns   ? t.slice(piece.offset[1], {piece.size[1]})
             : over == StateOver::parameter ? t
                                            : t.slice(at, shape);
    };
    UpdateSlice made{.master = part(master_, StateOver::elements),
                     .weight = part(weight_, StateOver::elements),
                     .grad = part(grad, StateOver::elements),
                     .state = {},
                     .whole = {}};
    for (std::size_t i = 0; i < state_.size(); ++i) {
      made.state.push_back(part(state_[i], treatment_.states[i].over));
    }
    for (const Measured& of : known) {
      made.measured.push_back({.rows = part(of.rows, StateOver::rows),
                               .columns = part(of.columns, StateOver::columns),
                               .parameter = of.parameter});
    }
    return made;
  }

  // What is measured in slices is summed at once: the bits of a sum depend on the slices.
  void measured_step(const Tensor& grad, const UpdateStep& step, const std::vector<std::int64_t>& cuts) {
    const std::int64_t rows = spec_.global[0], columns = elements() / rows;
    std::vector<Measured> known(treatment_.measures.size());
    int rounds = 0;
    for (const Measure& measure : treatment_.measures) {
      rounds = std::max(rounds, measure.round + 1);
    }
    for (int round = 0; round < rounds; ++round) {
      std::vector<Tensor> all;
      std::vector<std::size_t> asked;
      for (std::size_t i = 0; i < known.size(); ++i) {
        if (treatment_.measures[i].round == round) {
          asked.push_back(i);
          all.push_back(device_->empty(DType::f32, {rows, columns}));
        }
      }
      each_rectangle(cuts, [&](std::int64_t at, const OwnedPiece& piece) {
        std::vector<Tensor> out;
        for (const Tensor& t : all) {
          out.push_back(t.slice(at, {piece.size[0], piece.size[1]}));
        }
        optimizer_.measure(out, rectangle(grad, known, at, piece), step, round, *stream_);
      });
      for (std::size_t i = 0; i < asked.size(); ++i) {
        known[asked[i]] = measured(all[i], treatment_.measures[asked[i]]);
      }
      UpdateSlice slice{.master = {}, .weight = {}, .grad = {}, .state = {}, .whole = {}, .measured = known};
      for (std::size_t i = 0; i < state_.size(); ++i) {
        slice.state.push_back(treatment_.states[i].over == StateOver::elements ? Tensor() : state_[i]);
      }
      optimizer_.fold(slice, step, round, *stream_);
    }
    each_rectangle(cuts, [&](std::int64_t at, const OwnedPiece& piece) {
      optimizer_.update(rectangle(grad, known, at, piece), step, *stream_);
    });
  }
  Measured measured(const Tensor& of, const Measure& how) {
    Measured made;
    const auto reduce = [&](Tensor& to, bool wanted, std::int64_t n, auto call) {
      if (wanted) {
        const Tensor wide = device_->empty(DType::f64, {n});
        stream_->fill(wide, how.how == ReduceOp::sum ? 0 : -std::numeric_limits<double>::infinity());
        call(wide);
        to = device_->empty(DType::f32, {n});
        stream_->cast(to, wide);
      }
    };
    reduce(made.rows, how.rows, of.dim(0), [&](const Tensor& t) { stream_->reduce_matrix(t, {}, {}, of, how.how); });
    reduce(made.columns, how.columns, of.dim(1),
           [&](const Tensor& t) { stream_->reduce_matrix({}, t, {}, of, how.how); });
    reduce(made.parameter, how.parameter, 1, [&](const Tensor& t) { stream_->reduce_matrix({}, {}, t, of, how.how); });
    return made;
  }
  Tensor numbers(Shape n, int which) {
    const Tensor t = device_->empty(DType::f32, n);
    const RandomKey key{settings_.run.seed, Purpose::weight, static_cast<std::uint32_t>(which), 0};
    stream_->init_normal(t.view({n.elements(), 1}), key, 0.1f, {0, 0, 1});
    return t;
  }
  Tensor scalar(double value) {
    const Tensor t = device_->empty(DType::f32, {1});
    stream_->fill(t, value);
    return t;
  }
  std::vector<Tensor> tensors() const {
    std::vector<Tensor> all = {master_, weight_};
    all.insert(all.end(), state_.begin(), state_.end());
    return all;
  }
  template <class Visit>
  static void each(const std::vector<std::int64_t>& cuts, Visit visit) {
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      visit(cuts[i], cuts[i + 1] - cuts[i]);
    }
  }
  UpdateSlice slice(const Tensor& grad, const Tensor& whole, std::int64_t begin, std::int64_t count) const {
    UpdateSlice made{.master = master_.slice(begin, {count}),
                     .weight = weight_.slice(begin, {count}),
                     .grad = grad.defined() ? grad.slice(begin, {count}) : Tensor(),
                     .state = {},
                     .whole = whole.defined() ? whole.slice(begin, {count}) : Tensor()};
    for (const Tensor& state : state_) {
      made.state.push_back(state.slice(begin, {count}));
    }
    return made;
  }

  const Settings& settings_;
  const Optimizer& optimizer_;
  ParamSpec spec_;
  Treatment treatment_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Tensor master_, weight_;
  std::vector<Tensor> state_;
};

constexpr double clipped = 0.5;

// What is wrong with how it treats a parameter; empty: nothing.
std::string wrong(const Settings& settings, const Settings& again, const std::string& name, const ParamSpec& spec) {
  const auto made = [&](const Settings& s, const char* device = "cpu") { return Subject(s, name, spec, device); };
  Subject whole = made(settings), sliced = made(settings), guarded = made(settings, "guarded");
  const std::int64_t n = whole.elements();
  const std::vector<std::int64_t> all = {0, n}, cuts = {0, 1, n / 3, n - n / 4, n};
  std::vector<Bytes> first;
  Subject by_factor = made(settings), by_hand = made(settings);
  by_factor.step(0, all, clipped);
  by_hand.step(0, all, 1, static_cast<float>(clipped));  // a power of two: no rounding
  if (const std::string what = whole.difference(by_factor.values(), by_hand.values()); !what.empty()) {
    return fmt::format("{} differ from those of a gradient that was multiplied by *factor before", what);
  }
  for (int step = 0; step < 2; ++step) {
    whole.step(step, all, clipped);
    sliced.step(step, cuts, clipped);
    guarded.step(step, all, clipped);
    if (const std::string what = whole.difference(whole.values(), sliced.values()); !what.empty()) {
      return fmt::format("in step {} {} after an update in slices are not those of one update", step + 1, what);
    }
    if (const std::string what = whole.difference(whole.values(), guarded.values()); !what.empty()) {
      return fmt::format("in step {} {} on the guarded device differ, or from run to run", step + 1, what);
    }
    if (step == 0) {
      first = whole.values();
    }
  }
  if (!whole.weight_is_master()) {
    return "the weights in bf16 are not the updated weights, rounded: it must write UpdateSlice::weight too";
  }
  if (const std::string state = whole.negative_state(); !state.empty()) {
    return fmt::format("state '{}' is negative, but its code is that of what never is", state);
  }
  Subject resumed = made(again);
  resumed.restore(first);
  resumed.step(1, all, clipped);
  if (const std::string what = whole.difference(whole.values(), resumed.values()); !what.empty()) {
    return fmt::format("after a restore {} of the next step differ: it keeps state that it does not name", what);
  }
  if (whole.replays()) {
    Subject late = made(settings);
    late.restore(whole.values());
    for (const int step : {2, 3, 7}) {
      whole.step(step, all, clipped, 0);
    }
    late.replay({2, 3, 7}, cuts);
    if (const std::string what = whole.difference(whole.values(), late.values()); !what.empty()) {
      return fmt::format("{} after a replay are not those of its steps with a gradient of zeros", what);
    }
  }
  const std::vector<Bytes> before = whole.values();
  whole.step(8, all, std::numeric_limits<double>::quiet_NaN());
  if (const std::string what = whole.difference(whole.values(), before); !what.empty()) {
    return fmt::format("a step whose factor is NaN changes {}: one that is not finite must change nothing", what);
  }
  return "";
}

}  // namespace

Finding check_optimizer(const Config& config, const Config& again, const std::string& name) {
  Settings settings = config.settings, other = again.settings;
  settings.optimizer.name = other.optimizer.name = name;
  std::vector<std::pair<Treatment, bool>> seen;
  std::string looked_at;
  for (const LayerSpecs& layer : parameter_table(settings)) {
    for (const ParamSpec& spec : layer.params) {
      const std::pair<Treatment, bool> kind{treatment_of(spec, settings), spec.decay};
      if (kind.first != treatment_of(spec, settings) || kind.first != treatment_of(spec, other)) {
        return Finding::failed(fmt::format("it treats '{}' now in one way, now in another", spec.name));
      }
      if (std::find(seen.begin(), seen.end(), kind) != seen.end()) {
        continue;
      }
      seen.push_back(kind);
      if (const std::string what = wrong(settings, other, name, spec); !what.empty()) {
        return Finding::failed(fmt::format("{}: {}", spec.name, what));
      }
      looked_at += (looked_at.empty() ? "" : ", ") + spec.name;
    }
  }
  return Finding::ok(looked_at);
}

}  // namespace orthant
