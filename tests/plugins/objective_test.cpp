// An objective of one's own, out of tree: against its definition in fp64, and as the configuration meets it. Layouts:
// parts_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/catalogue.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/layers/layer.h"
#include "core/objectives/kinds.h"
#include "core/run/metrics.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/given_rows.h"
#include "tests/support/paths.h"

namespace orthant::objective_test {
namespace {

using test::experiment;
using testing::AllOf;
using testing::HasSubstr;
using Values = std::vector<double>;

constexpr std::int64_t tokens = 5, words = 24;  // of test::experiment
constexpr float loss_scale = 0.125f;
const std::vector<std::int32_t> labels = {3, -1, 23, 12, 0};  // one does not count

std::string focal(double gamma, double smoothing) {
  return fmt::format("[plugins.focal]\npath = \"{}\"\ngamma = {:.3f}\nsmoothing = {:.3f}\n",
                     paths::out_of_tree("focal"), gamma, smoothing);
}

Values logits() {
  Values values;
  for (std::int64_t i = 0; i < tokens * words; ++i) {
    const float x = 2 * normal({3, Purpose::test, 1, 0}, static_cast<std::uint64_t>(i));
    values.push_back(static_cast<double>(x));
  }
  return values;
}

// The definition of one row.
double loss_of(const double* row, std::int32_t label, double gamma, double smoothing) {
  if (label < 0) {
    return 0;
  }
  const double largest = *std::max_element(row, row + words);
  double sum = 0, all = 0;
  for (std::int64_t v = 0; v < words; ++v) {
    sum += std::exp(row[v] - largest);
  }
  const auto minus_log_p = [&](std::int64_t v) { return largest + std::log(sum) - row[v]; };
  for (std::int64_t v = 0; v < words; ++v) {
    all += minus_log_p(v) / static_cast<double>(words);
  }
  const double p = std::exp(-minus_log_p(label));
  return (1 - smoothing) * std::pow(1 - p, gamma) * minus_log_p(label) + smoothing * all;
}

double total(const Values& of, double gamma, double smoothing) {
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sum += loss_of(of.data() + t * words, labels[static_cast<std::size_t>(t)], gamma, smoothing);
  }
  return sum;
}

struct Found {
  std::vector<float> gradient = std::vector<float>(tokens * words);
  Values sums = {0, 0};
};

Found computed(const std::string& plugins, int ranks) {
  const Config config = experiment({}, plugins);
  Found found;
  std::mutex mutex;
  run_threads(ranks, [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    Plan& plan = rank.session().plan();
    Device& device = plan.device();
    Stream& s = rank.stream();
    const Range columns = plan.part(Dim::vocab, words, Region::head);
    const Values whole = logits();
    std::vector<float> own;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto row = whole.begin() + t * words + columns.begin;
      own.insert(own.end(), row, row + columns.count);
    }
    const Tensor given = device.empty(DType::f32, {tokens, columns.count}), sums = device.empty(DType::f64, {2});
    s.upload(given, own.data());
    s.fill(sums, 0);
    DeviceBatch batch;
    batch.label = device.empty(DType::i32, {tokens});
    s.upload(batch.label, labels.data());
    StepSums unused;
    const StepContext ctx{.plan = plan, .stream = s, .batch = batch, .sums = unused, .loss_scale = loss_scale};
    test::GivenRows rows(ctx, plan, given, columns.begin, 3);
    config.settings.catalogue->get<Objective>("focal").run({.counts = {}, .sums = sums}, rows, ctx);
    EXPECT_EQ(rows.learned(), tokens);
    s.download(own.data(), given);
    const std::lock_guard lock(mutex);
    s.download(found.sums.data(), sums);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::copy_n(own.begin() + t * columns.count, columns.count, found.gradient.begin() + t * words + columns.begin);
    }
  });
  return found;
}

TEST(OutOfTreeObjective, IsItsDefinitionAndItsGradientThatOfFiniteDifferences) {
  for (const auto& [gamma, smoothing] : std::vector<std::pair<double, double>>{{2, 0.1}, {0, 0.2}, {1.5, 0}, {0, 0}}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("gamma {}, smoothing {}, {} ranks", gamma, smoothing, ranks));
      const std::string divided = ranks == 1 ? "" : "[plugins.tensor]\nsize = 2\n";
      const Found found = computed(divided + focal(gamma, smoothing), ranks);
      Values x = logits();
      EXPECT_NEAR(found.sums[0], total(x, gamma, smoothing), 2e-5);
      EXPECT_NEAR(found.sums[1], total(x, 0, 0), 2e-5);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double at = x[i], h = 1e-5;
        x[i] = at + h;
        const double above = total(x, gamma, smoothing);
        x[i] = at - h;
        const double below = total(x, gamma, smoothing);
        x[i] = at;
        EXPECT_NEAR(found.gradient[i], static_cast<double>(loss_scale) * (above - below) / (2 * h), 3e-7) << i;
      }
    }
  }
}

// Without either number it is the cross entropy, which stays a figure beside any other loss.
TEST(OutOfTreeObjective, IsTrainedMeasuredAndTold) {
  test::OneRank plain(experiment({})), same(experiment({R"(train.objective="focal")"}, focal(0, 0))),
      rank(experiment({R"(train.objective="focal")", "optimizer.lr=0.01"}, focal(2, 0.1)));
  const StepReport expected = plain->trainer().step(0), found = same->trainer().step(0);
  EXPECT_NEAR(found.loss, expected.loss, 1e-6);
  EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-5);
  EXPECT_NEAR(found.figures.at("cross_entropy_loss"), expected.loss, 1e-6);
  EXPECT_TRUE(expected.figures.empty());
  const double before = rank->trainer().validate_sets().loss;
  const StepReport first = rank->trainer().step(0);
  StepReport last;
  for (int step = 1; step < 30; ++step) {
    last = rank->trainer().step(step);
  }
  EXPECT_LT(last.loss, first.loss - 0.1);
  EXPECT_GT(last.figures.at("cross_entropy_loss"), last.loss);  // what is focal is smaller
  const Validation after = rank->trainer().validate_sets();
  EXPECT_LT(after.loss, before);
  EXPECT_TRUE(after.figures.contains("cross_entropy_loss"));
}

TEST(Objectives, ThatCannotBeAreRefused) {
  EXPECT_THAT(
      test::refusal({R"(train.objective="focl")"}, focal(2, 0.1)),
      AllOf(HasSubstr("[train] objective: there is no objective \"focl\""), HasSubstr("did you mean \"focal\"?")));
  EXPECT_THAT(test::refusal({R"(train.objective="multi_token")"}, ""),
              AllOf(HasSubstr("beside the objective of the head"), HasSubstr("mtp_depth")));
  EXPECT_THAT(test::refusal({R"(train.objective="distil")"}, ""), HasSubstr("[distil] teacher names none"));
  EXPECT_THAT(test::refusal({R"(train.objective="focal")", R"(distil.teacher="/nowhere")"}, focal(2, 0.1)),
              HasSubstr("\"focal\" does not learn from [distil] teacher"));
  EXPECT_THAT(test::refusal({R"(train.objective="pairs")", R"(data.source="text")", R"(data.path=["x"])"}, ""),
              HasSubstr("\"pairs\" compares pairs of answers, and data.source = \"text\" has none"));
}

TEST(Objectives, FiguresHaveNamesOfTheirOwn) {
  StepReport report;
  report.figures = {{"mine", 0.5}};
  MetricsLine line;
  line.report = &report;
  EXPECT_THAT(to_json(line, "id"), HasSubstr("\"mine\":0.5"));
  report.figures = {{"lr", 0.5}};
  EXPECT_THAT([&] { to_json(line, "id"); }, testing::ThrowsMessage<Error>(HasSubstr("a figure 'lr'")));
}

// What nobody names is what the other settings ask for.
TEST(Objectives, AreImpliedBySettings) {
  Settings settings;
  EXPECT_EQ(objective_name(settings), "cross_entropy");
  EXPECT_EQ(objectives_of(settings).size(), 1u);
  kind_values(settings, "distil")["teacher"] = std::string("/somewhere");
  EXPECT_EQ(objective_name(settings), "distil");
  EXPECT_EQ(objective_of(settings).reference(settings).folder, "/somewhere");
  settings.data.source = "pairs";
  settings.train.from = "/start";
  EXPECT_EQ(objective_name(settings), "pairs");
  EXPECT_EQ(objective_of(settings).reference(settings).folder, "/start");
  settings.train.objective = "cross_entropy";
  settings.model.mtp_depth = 2;
  EXPECT_EQ(objective_name(settings), "cross_entropy");
  ASSERT_EQ(objectives_of(settings).size(), 2u);
  EXPECT_EQ(objectives_of(settings)[1]->sums(settings).size(), 2u);
}

}  // namespace
}  // namespace orthant::objective_test
