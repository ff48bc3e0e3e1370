// The loss of a student against its definition in fp64, its gradient against finite differences of that, on one rank
// and where ranks divide the vocabulary.
#include <gtest/gtest.h>
#include <orthant/catalogue.h>
#include <orthant/objective.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/layers/layer.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/given_rows.h"

namespace orthant::distil_loss_test {
namespace {

using test::experiment;
using Values = std::vector<double>;

constexpr std::int64_t tokens = 5, words = 24;  // of test::experiment
constexpr float loss_scale = 0.125f;
const std::vector<std::int32_t> labels = {3, -1, 23, 12, 0};  // one does not count

struct Case {
  double weight, temperature;
};

Values logits(std::uint32_t site) {
  Values values;
  for (std::int64_t i = 0; i < tokens * words; ++i) {
    const float x = 2 * normal({3, Purpose::test, site, 0}, static_cast<std::uint64_t>(i));
    values.push_back(static_cast<double>(x));
  }
  return values;
}

// Of one row over `by`: the logarithm of its softmax.
Values log_softmax(const double* row, double by) {
  double largest = -INFINITY, sum = 0;
  for (std::int64_t v = 0; v < words; ++v) {
    largest = std::max(largest, row[v] / by);
  }
  for (std::int64_t v = 0; v < words; ++v) {
    sum += std::exp(row[v] / by - largest);
  }
  Values result;
  for (std::int64_t v = 0; v < words; ++v) {
    result.push_back(row[v] / by - largest - std::log(sum));
  }
  return result;
}

double cross_entropy(const Values& student, std::int64_t t) {
  const std::int32_t label = labels[static_cast<std::size_t>(t)];
  return label < 0 ? 0 : -log_softmax(student.data() + t * words, 1)[static_cast<std::size_t>(label)];
}

double divergence(const Values& student, const Values& teacher, std::int64_t t, double temperature) {
  if (labels[static_cast<std::size_t>(t)] < 0) {
    return 0;
  }
  const Values p = log_softmax(student.data() + t * words, temperature);
  const Values q = log_softmax(teacher.data() + t * words, temperature);
  double sum = 0;
  for (std::size_t v = 0; v < p.size(); ++v) {
    sum += std::exp(q[v]) * (q[v] - p[v]);
  }
  return sum;
}

double total(const Values& student, const Values& teacher, const Case& c) {
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    sum += (1 - c.weight) * cross_entropy(student, t) +
           c.weight * c.temperature * c.temperature * divergence(student, teacher, t, c.temperature);
  }
  return loss_scale * sum;
}

// What the operation gives, of all columns; each rank has put its own there.
struct Found {
  std::vector<float> gradient = std::vector<float>(tokens * words);
  std::vector<double> sums = {0, 0};  // of -log p(label), and of the divergence
};

Found computed(const Case& c, const std::string& plugins, int ranks, const std::string& device_name = "cpu") {
  const Config config =
      experiment({fmt::format("distil.weight={}", c.weight), fmt::format("distil.temperature={}", c.temperature),
                  fmt::format("run.device=\"{}\"", device_name)},
                 plugins);
  Found found;
  std::mutex mutex;
  run_threads(ranks, [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    Plan& plan = rank.session().plan();
    Device& device = plan.device();
    Stream& s = rank.stream();
    const Range columns = plan.part(Dim::vocab, words, Region::head);
    const auto slice = [&](const Values& whole) {
      std::vector<float> own;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto row = whole.begin() + t * words + columns.begin;
        own.insert(own.end(), row, row + columns.count);
      }
      const Tensor tensor = device.empty(DType::f32, {tokens, columns.count});
      s.upload(tensor, own.data());
      return tensor;
    };
    const Tensor student = slice(logits(1)), teacher = slice(logits(2));
    DeviceBatch batch;
    batch.label = device.empty(DType::i32, {tokens});
    s.upload(batch.label, labels.data());
    const Tensor found_sums = device.empty(DType::f64, {2});
    s.fill(found_sums, 0);
    StepSums unused;
    const StepContext ctx{.plan = plan, .stream = s, .batch = batch, .sums = unused, .loss_scale = loss_scale};
    test::GivenRows rows(ctx, plan, student, columns.begin, 3);  // in two chunks
    test::GivenTeacher taught(teacher);
    config.settings.catalogue->get<Objective>("distil").run({.counts = {}, .sums = found_sums, .teacher = &taught},
                                                            rows, ctx);
    EXPECT_EQ(taught.begun, 0);
    EXPECT_EQ(rows.learned(), tokens);
    std::vector<float> own(static_cast<std::size_t>(tokens * columns.count));
    std::vector<double> sums(2);
    s.download(own.data(), student);
    s.download(sums.data(), found_sums);
    const std::lock_guard lock(mutex);
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::copy_n(own.begin() + t * columns.count, columns.count, found.gradient.begin() + t * words + columns.begin);
    }
    EXPECT_TRUE(found.sums[0] == 0 || sums == found.sums) << "ranks differ";
    found.sums = sums;
  });
  return found;
}

void expect_right(const Case& c, const Found& found) {
  const Values teacher = logits(2);
  Values student = logits(1);
  double apart = 0, loss = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    loss += cross_entropy(student, t);
    apart += divergence(student, teacher, t, c.temperature);
  }
  ASSERT_GT(apart, 0.01);
  EXPECT_NEAR(found.sums[0], loss, 3e-5);
  EXPECT_NEAR(found.sums[1], apart, 1e-5 * std::max(1.0, apart));
  for (std::size_t i = 0; i < student.size(); ++i) {
    const double x = student[i], h = 1e-5;
    student[i] = x + h;
    const double above = total(student, teacher, c);
    student[i] = x - h;
    const double below = total(student, teacher, c);
    student[i] = x;
    EXPECT_NEAR(found.gradient[i], (above - below) / (2 * h), 2e-7 * c.temperature) << "element " << i;
  }
}

const std::vector<Case> cases = {{0.3, 2.5}, {0.5, 1}, {1, 1}, {1, 4}, {0.01, 0.5}};

TEST(DistilLoss, IsItsDefinitionAndItsGradientThatOfFiniteDifferences) {
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("weight {}, temperature {}", c.weight, c.temperature));
    expect_right(c, computed(c, "", 1));
  }
}

TEST(DistilLoss, OfADividedVocabulary) {
  for (const int ranks : {2, 4}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} ranks, weight {}, temperature {}", ranks, c.weight, c.temperature));
      expect_right(c, computed(c, fmt::format("[plugins.tensor]\nsize = {}\n", ranks), ranks));
    }
  }
}

// The kernels of CUDA, which run on the CPU here.
TEST(DistilLoss, OnTheDeviceSimt) {
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("weight {}, temperature {}", c.weight, c.temperature));
    expect_right(c, computed(c, "", 1, "simt"));
  }
}

}  // namespace
}  // namespace orthant::distil_loss_test
