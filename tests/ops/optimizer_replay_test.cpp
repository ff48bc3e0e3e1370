// Replays of missed steps against the steps themselves, one by one with a gradient of zeros: equal in every bit. And
// updates of slices against one update of the whole.
#include <random>

#include "tests/ops/oracle.h"

namespace orthant::test::optimizer_replay_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<std::byte> bits(OpContext& c, const Tensor& t) {
  std::vector<std::byte> bytes(t.bytes());
  c.stream().download(bytes.data(), t);
  return bytes;
}

// What an optimizer changes. In fp32 the weight is the master itself.
struct State {
  Tensor p, m, v, weight;

  State part(std::int64_t begin, std::int64_t count) const {
    return {p.slice(begin, {count}), m.slice(begin, {count}), v.slice(begin, {count}), weight.slice(begin, {count})};
  }
};

State copy_of(OpContext& c, const State& from) {
  State made = from;
  const bool own_weight = from.weight.data() != from.p.data();
  for (Tensor* t : {&made.p, &made.m, &made.v, &made.weight}) {
    const Tensor source = *t;
    *t = c.poisoned(source.dtype(), source.shape());
    c.stream().copy(*t, source);
  }
  if (!own_weight) {
    made.weight = made.p;
  }
  return made;
}

void expect_equal(OpContext& c, const std::string& name, const State& a, const State& b) {
  EXPECT_EQ(bits(c, a.p), bits(c, b.p)) << "master " << name;
  EXPECT_EQ(bits(c, a.m), bits(c, b.m)) << "m " << name;
  EXPECT_EQ(bits(c, a.v), bits(c, b.v)) << "v " << name;
  EXPECT_EQ(bits(c, a.weight), bits(c, b.weight)) << "weight " << name;
  c.same_bits("master " + name, a.p);
  c.same_bits("weight " + name, a.weight);
}

// A state in the middle of a run. The first elements have zeros of both signs, denormal numbers, and what becomes one.
State some_state(OpContext& c, std::int64_t n, DType dtype) {
  const double denormal = 1e-45, small = 1.2e-38;
  Values p = c.normal(DType::f32, {n}, 1).values, m = c.normal(DType::f32, {n}, 0.1).values;
  Values v = c.normal(DType::f32, {n}, 0.1).values;
  const Values odd_p = {0.0, -0.0, 0.0, -0.0, denormal, -denormal, small, -small, 1.0, -1.0, 1.0, infinity};
  const Values odd_m = {0.0, -0.0, -0.0, 0.0, -denormal, denormal, -small, small, small, -denormal, -0.0, 1.0};
  const Values odd_v = {0.0, 0.0, denormal, denormal, 0.0, 0.0, small, 1.0, denormal, 0.0, small, infinity};
  for (std::size_t i = 0; i < v.size(); ++i) {
    v[i] *= v[i];
    if (i < odd_p.size()) {
      p[i] = odd_p[i];
      m[i] = odd_m[i];
      v[i] = odd_v[i];
    }
  }
  const Tensor master = c.input(DType::f32, {n}, p).tensor;
  return {master, c.input(DType::f32, {n}, m).tensor, c.input(DType::f32, {n}, v).tensor,
          dtype == DType::f32 ? master : c.poisoned(dtype, {n})};
}

// Rules that an optimizer goes by, and how the operations take them.
struct ByAdamW {
  using Step = AdamW;
  static Step step(int number, double lr, bool odd) {
    const double count = number + 1;
    return {.lr = static_cast<float>(lr),
            .beta1 = odd ? 0.5f : 0.9f,  // a half: products that are ties between two denormal numbers
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .weight_decay = odd ? 0.0f : 0.1f,
            .correction1 = static_cast<float>(1 - std::pow(odd ? 0.5 : 0.9, count)),
            .correction2 = static_cast<float>(1 - std::pow(0.95, count))};
  }
  static void update(Stream& s, const State& x, const Tensor& grad, const Tensor& factor, const Step& how) {
    s.adamw(x.p, x.weight, x.m, x.v, grad, factor, how);
  }
  static void replay(Stream& s, const State& x, std::span<const Step> steps) {
    s.adamw_replay(x.p, x.weight, x.m, x.v, steps);
  }
};
struct BySgd {
  using Step = Sgd;
  static Step step(int, double lr, bool odd) {
    return {.lr = static_cast<float>(lr), .momentum = odd ? 0.5f : 0.9f, .weight_decay = odd ? 0.0f : 0.1f};
  }
  static void update(Stream& s, const State& x, const Tensor& grad, const Tensor& factor, const Step& how) {
    s.sgd(x.p, x.weight, x.m, grad, factor, how);
  }
  static void replay(Stream& s, const State& x, std::span<const Step> steps) {
    s.sgd_replay(x.p, x.weight, x.m, steps);
  }
};

template <class Rule>
class Replay : public testing::Test {};
using Rules = testing::Types<ByAdamW, BySgd>;
TYPED_TEST_SUITE(Replay, Rules);

TYPED_TEST(Replay, EqualsItsSteps) {
  on_every_device([](OpContext& c) {
    for (const std::int64_t n : {0, 1, 37, 40001}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const bool odd = dtype == DType::bf16;
        const Tensor none = c.constant(DType::f32, {n}, 0).tensor;
        const Tensor factor = c.input(DType::f32, {1}, {0.3}).tensor;
        const int count = n > 1000 ? 3 : 150;  // more than one launch takes
        const State one_by_one = some_state(c, n, dtype), at_once = copy_of(c, one_by_one);
        std::vector<typename TypeParam::Step> missed;
        for (int step = 0; step < count; ++step) {
          missed.push_back(TypeParam::step(step, 0.01 / (step + 1), odd));
          TypeParam::update(c.stream(), one_by_one, none, factor, missed.back());
        }
        TypeParam::replay(c.stream(), at_once, missed);
        expect_equal(c, fmt::format("{} {}", n, name_of(dtype)), at_once, one_by_one);
      }
    }
  });
}

// A thousand steps with a schedule. Now and then there is a gradient; what was missed until then is replayed.
TYPED_TEST(Replay, EqualsEveryStepOfARun) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      constexpr std::int64_t n = 61;
      std::mt19937 random(5);
      const Tensor none = c.constant(DType::f32, {n}, 0).tensor, factor = c.input(DType::f32, {1}, {0.7}).tensor;
      const State eager = some_state(c, n, dtype), lazy = copy_of(c, eager);
      std::vector<typename TypeParam::Step> missed;
      int gap = 0;
      for (int step = 0; step < 1000; ++step) {
        const double lr = 0.01 * static_cast<double>(random() % 1000) / 1000;
        const typename TypeParam::Step how = TypeParam::step(step, lr, false);
        if (gap-- > 0) {
          TypeParam::update(c.stream(), eager, none, factor, how);
          missed.push_back(how);
          continue;
        }
        gap = static_cast<int>(random() % 5 == 0 ? random() % 300 : random() % 10);
        TypeParam::replay(c.stream(), lazy, missed);
        missed.clear();
        const Tensor grad = c.normal(DType::f32, {n}, 0.1).tensor;
        TypeParam::update(c.stream(), eager, grad, factor, how);
        TypeParam::update(c.stream(), lazy, grad, factor, how);
        if (bits(c, eager.p) != bits(c, lazy.p) || bits(c, eager.weight) != bits(c, lazy.weight)) {
          ADD_FAILURE() << "in step " << step;
          return;
        }
      }
      TypeParam::replay(c.stream(), lazy, missed);
      expect_equal(c, std::string(name_of(dtype)), lazy, eager);
    }
  });
}

// An element's bits do not depend on where slices begin: whether a vector holds it, or the rest of a loop.
TYPED_TEST(Replay, AndUpdatesOfSlicesAreThoseOfTheWhole) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      constexpr std::int64_t n = 203;
      const Tensor grad = c.normal(DType::f32, {n}, 0.1).tensor, factor = c.input(DType::f32, {1}, {0.7}).tensor;
      const State whole = some_state(c, n, dtype);
      const std::vector<typename TypeParam::Step> missed = {TypeParam::step(1, 0.01, false),
                                                            TypeParam::step(2, 0.02, false)};
      const std::vector<std::int64_t> cuts = {0, 1, 2, 5, 36, 101, 134, n};
      const State sliced = copy_of(c, whole);
      TypeParam::update(c.stream(), whole, grad, factor, TypeParam::step(0, 0.1, false));
      TypeParam::replay(c.stream(), whole, missed);
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::int64_t count = cuts[i + 1] - cuts[i];
        const State part = sliced.part(cuts[i], count);
        TypeParam::update(c.stream(), part, grad.slice(cuts[i], {count}), factor, TypeParam::step(0, 0.1, false));
        TypeParam::replay(c.stream(), part, missed);
      }
      expect_equal(c, std::string(name_of(dtype)), sliced, whole);
    }
  });
}

TYPED_TEST(Replay, OfNoStepWritesNothing) {
  on_every_device([](OpContext& c) {
    const State x = some_state(c, 37, DType::bf16), before = copy_of(c, x);
    TypeParam::replay(c.stream(), x, {});
    expect_equal(c, "", x, before);
  });
}

// Devices that do their work later have taken the list by then.
TYPED_TEST(Replay, TakesTheListAtOnce) {
  const std::unique_ptr<Device> device = make_device("late", 1);
  OpContext c(*device);
  const State x = some_state(c, 37, DType::bf16), expected = copy_of(c, x);
  const std::vector<typename TypeParam::Step> missed = {TypeParam::step(1, 0.01, false)};
  std::vector<typename TypeParam::Step> changed = missed;
  TypeParam::replay(c.stream(), x, changed);
  changed[0] = TypeParam::step(9, 0.5, true);
  TypeParam::replay(c.stream(), expected, missed);
  expect_equal(c, "", x, expected);
}

TYPED_TEST(Replay, RefusesWhatDoesNotFit) {
  on_every_device([](OpContext& c) {
    const State x = some_state(c, 37, DType::bf16);
    const std::vector<typename TypeParam::Step> missed = {TypeParam::step(1, 0.01, false)};
    const auto refused = [&](State wrong) { EXPECT_THROW(TypeParam::replay(c.stream(), wrong, missed), Error); };
    refused({x.p, x.m.slice(0, {36}), x.v, x.weight});
    refused({x.p, x.m, x.v, x.weight.slice(0, {36})});
    refused({x.weight, x.m, x.v, x.weight});
    refused({x.p, x.weight, x.v, x.weight});
    refused({x.p, x.m, x.v, c.poisoned(DType::i32, {37})});
    refused({x.p, {}, x.v, x.weight});
    if constexpr (std::is_same_v<TypeParam, ByAdamW>) {
      refused({x.p, x.m, x.v.slice(0, {36}), x.weight});
      refused({x.p, x.m, {}, x.weight});
    }
  });
}

}  // namespace
}  // namespace orthant::test::optimizer_replay_test
