// What an optimizer may say that it measures (Treatment::measures), and which declarations are refused, by name. One
// that keeps the largest gradient of each row and column (SM3 of Anil et al., "Memory-Efficient Adaptive Optimization",
// 2019) against plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/optimizer.h>
#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "tests/support/error_of.h"
#include "tests/support/parity.h"

namespace orthant::measures_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;
using testing::HasSubstr;

Config with(std::shared_ptr<const Optimizer> optimizer, const std::string& plugins = "",
            const Overrides& overrides = {}) {
  Config config = experiment(overrides, plugins);
  const auto catalogue = built_in_catalogue();
  catalogue->add<Optimizer>("planted", "Of a test.", std::move(optimizer));
  config.settings.catalogue = catalogue;
  config.settings.optimizer.name = "planted";
  return config;
}

// --- refusals

class Declared final : public Optimizer {
 public:
  using Declaration = std::function<Treatment(const ParamSpec&)>;
  explicit Declared(Declaration declaration) : declaration_(std::move(declaration)) {}
  Treatment treatment(const ParamSpec& p, const OptimizerSettings&) const override { return declaration_(p); }
  void update(const UpdateSlice&, const UpdateStep&, Stream&) const override {}

 private:
  Declaration declaration_;
};

struct Refused {
  const char* name;
  Declared::Declaration declaration;
  const char* says;
};
void PrintTo(const Refused& one, std::ostream* out) {
  *out << one.name;
}
class Declarations : public testing::TestWithParam<Refused> {};

TEST_P(Declarations, ThatCannotBeAreRefusedBeforeAnythingStarts) {
  const Config config = with(std::make_shared<Declared>(GetParam().declaration));
  EXPECT_THAT(test::error_of([&] { check_layout(config); }), HasSubstr(GetParam().says));
}

const Measure all{.parameter = true};
const auto state = [](StateOver over, StateCode code = StateCode::none) {
  return OptimizerState{.name = "kept", .code = code, .over = over};
};
const Refused refused[] = {
    {"rows_of_a_norm",
     [](const ParamSpec&) { return Treatment{.states = {state(StateOver::rows)}, .measures = {all}}; },
     "is over rows or columns of [16]: expected 2 dimensions"},
    {"coded_rows",
     [](const ParamSpec& p) {
       return p.global.rank() == 2
                  ? Treatment{.states = {state(StateOver::rows, StateCode::positive)}, .measures = {all}}
                  : Treatment{};
     },
     "has a code of 8 bits: expected one over elements"},
    {"nothing_to_make_it_from", [](const ParamSpec&) { return Treatment{.states = {state(StateOver::parameter)}}; },
     "is not over elements, and there is nothing to make it from"},
    {"whole_too", [](const ParamSpec&) { return Treatment{.states = {}, .whole = true, .measures = {all}}; },
     "and treats it as a whole: expected one of the two"},
    {"replays_too", [](const ParamSpec&) { return Treatment{.states = {}, .replays = true, .measures = {all}}; },
     "and says that it replays its updates: expected one of the two"},
    {"over_nothing", [](const ParamSpec&) { return Treatment{.states = {}, .measures = {{}}}; },
     "over nothing: expected rows, columns or the parameter"},
    {"columns_of_a_norm", [](const ParamSpec&) { return Treatment{.states = {}, .measures = {{.columns = true}}}; },
     "over rows or columns of [16]: expected 2 dimensions"},
    {"the_least",
     [](const ParamSpec&) { return Treatment{.states = {}, .measures = {{.parameter = true, .how = ReduceOp::min}}}; },
     "by neither sum nor max"},
    {"a_round_left_out",
     [](const ParamSpec&) { return Treatment{.states = {}, .measures = {{.parameter = true, .round = 1}}}; },
     "in round 1: expected rounds from 0 on, without gaps"},
    {"a_round_below_0",
     [](const ParamSpec&) {
       return Treatment{.states = {}, .measures = {all, {.parameter = true, .round = -1}}};
     },
     "in round -1: expected rounds from 0 on"},
};
INSTANTIATE_TEST_SUITE_P(Of, Declarations, testing::ValuesIn(refused), [](const auto& one) { return one.param.name; });

TEST(Measures, WithoutACallThatMeasuresAreRefused) {
  const Config config =
      with(std::make_shared<Declared>([](const ParamSpec&) { return Treatment{.states = {}, .measures = {all}}; }));
  EXPECT_THAT(test::error_of([&] { OneRank(config)->trainer().step(0); }),
              HasSubstr("says what it measures (Treatment::measures) and has no `measure`"));
}

TEST(Measures, LetNoUpdateBePutOff) {
  const Config config =
      with(std::make_shared<Declared>([](const ParamSpec&) { return Treatment{.states = {}, .measures = {all}}; }),
           "[plugins.offload]\nstates = \"host\"\nexpert_states = \"lazy\"\n", {"optimizer.clip_grad_norm=0"});
  EXPECT_THAT(test::error_of([&] { check_layout(config); }), HasSubstr("cannot make up for updates"));
}

// --- the largest of rows and columns

// SM3-II: what an element is divided by is the lesser of its row's and its column's largest, and its square more.
class Sm3 final : public Optimizer {
 public:
  Treatment treatment(const ParamSpec& p, const OptimizerSettings&) const override {
    const bool matrix = p.global.rank() == 2;
    Treatment of{.states = {{.name = "sum"}}, .method = matrix ? 1 : 0};
    if (matrix) {
      of.states = {{.name = "row", .over = StateOver::rows},
                   {.name = "column", .over = StateOver::columns},
                   {.name = "row_before", .over = StateOver::rows},
                   {.name = "column_before", .dtype = DType::f64, .over = StateOver::columns}};
      of.measures = {{.rows = true, .columns = true, .how = ReduceOp::max}};
    }
    return of;
  }
  void measure(std::span<const Tensor> out, const UpdateSlice& slice, const UpdateStep& step, int,
               Stream& s) const override {
    sums(out[0], slice, slice.state[0], slice.state[1], step, s);
  }
  void fold(const UpdateSlice& slice, const UpdateStep&, int, Stream& s) const override {
    s.copy(slice.state[2], slice.state[0]);
    s.cast(slice.state[3], slice.state[1]);
    s.copy(slice.state[0], slice.measured[0].rows);
    s.copy(slice.state[1], slice.measured[0].columns);
  }
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    Device& device = s.device();
    const Shape shape = slice.grad.shape();
    Tensor sum = slice.state[0];
    if (step.method == 1) {
      sum = device.empty(DType::f32, shape);
      const Tensor column = device.empty(DType::f32, slice.state[3].shape());
      s.cast(column, slice.state[3]);
      sums(sum, slice, slice.state[2], column, step, s);
    } else {
      s.apply({.name = "sm3/sum",
               .inputs = {slice.grad, step.factor, sum},
               .outputs = {sum},
               .host = [](const HostArguments& a) {
                 for (std::size_t i = 0; i < a.input<float>(0).size(); ++i) {
                   const float g = a.input<float>(0)[i] * a.input<float>(1)[0];
                   a.output<float>(0)[i] += g * g;
                 }
               }});
    }
    const Tensor change = device.empty(DType::f32, shape);
    s.apply({.name = "sm3/change",
             .inputs = {slice.grad, step.factor, sum},
             .outputs = {change},
             .host = [](const HostArguments& a) {
               for (std::size_t i = 0; i < a.input<float>(0).size(); ++i) {
                 a.output<float>(0)[i] =
                     a.input<float>(0)[i] * a.input<float>(1)[0] / (std::sqrt(a.input<float>(2)[i]) + 1e-3f);
               }
             }});
    s.descend(slice.master, slice.weight, change, step.finite, static_cast<float>(step.lr), 0.0f);
  }

 private:
  static void sums(const Tensor& to, const UpdateSlice& slice, const Tensor& row, const Tensor& column,
                   const UpdateStep& step, Stream& s) {
    s.apply({.name = "sm3/sums",
             .inputs = {slice.grad, step.factor, row, column},
             .outputs = {to},
             .host = [](const HostArguments& a) {
               const auto r = a.input<float>(2), c = a.input<float>(3);
               for (std::size_t i = 0, at = 0; i < r.size(); ++i) {
                 for (std::size_t j = 0; j < c.size(); ++j, ++at) {
                   const float g = a.input<float>(0)[at] * a.input<float>(1)[0];
                   a.output<float>(0)[at] = std::min(r[i], c[j]) + g * g;
                 }
               }
             }});
  }
};

TEST(Sm3, IsTheDefinition) {
  OneRank rank(with(std::make_shared<Sm3>(), "", {"optimizer.clip_grad_norm=0", "optimizer.lr=0.02"}));
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const std::size_t n = 16;
  std::vector<double> row(n, 0), column(n, 0), x;
  for (const float w : rank->weight(name)) {
    x.push_back(static_cast<double>(w));
  }
  for (int step = 0; step < 3; ++step) {
    rank->trainer().gradients(step);
    const std::vector<float> g = rank->gradient(name);
    rank->trainer().apply(step);
    std::vector<double> new_row(n, 0), new_column(n, 0);
    for (std::size_t i = 0; i < n * n; ++i) {
      const double of = static_cast<double>(g[i]);
      const double sum = std::min(row[i / n], column[i % n]) + of * of;
      new_row[i / n] = std::max(new_row[i / n], sum);
      new_column[i % n] = std::max(new_column[i % n], sum);
      x[i] -= 0.02 * of / (std::sqrt(sum) + 1e-3);
    }
    row = new_row;
    column = new_column;
    const std::vector<float> got = rank->weight(name), got_row = rank->state("row", name);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(got[i], x[i], 1e-5) << i;
    }
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(got_row[i], row[i], 1e-5 * row[i]) << i;
    }
  }
}

class Sm3In : public testing::TestWithParam<const char*> {};

TEST_P(Sm3In, EqualsOneRank) {
  const VerifyReport report = verify(with(std::make_shared<Sm3>(), GetParam(), {"batch.micro_batch=2"}), 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}
INSTANTIATE_TEST_SUITE_P(
    Parity, Sm3In,
    testing::Values("[plugins.data]\nsize = 4\nzero = 2\n[plugins.expert]\nsize = 2\n",
                    "[plugins.data]\nsize = 4\nzero = 1\nshard_ranks = 2\n[plugins.tensor]\nsize = 2\n"),
    [](const auto& layout) { return layout.index == 0 ? "zero_2_expert" : "hybrid_tensor"; });

}  // namespace
}  // namespace orthant::measures_test
