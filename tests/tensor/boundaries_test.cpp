// Every boundary of the tensor axis is a conjugate pair: <f(x), y> = <x, f*(y)>.
//
// What the ranks hold on one side of it is a point of one of three spaces, each with its inner product: the same tensor
// on all of them (counted once), runs of the rows of one tensor, or a tensor of its own on each.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"

namespace orthant::boundaries_test {
namespace {

using test::experiment;
using Values = std::vector<float>;

enum class Space { same, rows, each };

struct Pair {
  Site site;
  Space from, to;
};
struct Case {
  const char* name;
  const char* keys;
  std::vector<Pair> pairs;
};

constexpr Side in = Side::enter, out = Side::leave;
const Case cases[] = {
    {"Split",
     "",
     {{{Region::attention, in}, Space::same, Space::each},
      {{Region::attention, out}, Space::each, Space::same},
      {{Region::ffn, in}, Space::same, Space::each},
      {{Region::ffn, out}, Space::each, Space::same},
      {{Region::experts, in}, Space::same, Space::each},
      {{Region::experts, out}, Space::each, Space::same},
      {{Region::router, out}, Space::same, Space::each},
      {{Region::embedding, out}, Space::each, Space::same},
      {{Region::head, in}, Space::same, Space::each}}},
    {"CutRows",
     "sequence_parallel = true\n",
     {{{Region::attention, in}, Space::rows, Space::each},
      {{Region::attention, out}, Space::each, Space::rows},
      {{Region::ffn, in}, Space::rows, Space::each},
      {{Region::ffn, out}, Space::each, Space::rows},
      {{Region::experts, in}, Space::rows, Space::each},
      {{Region::experts, out}, Space::each, Space::rows},
      {{Region::router, in}, Space::rows, Space::rows},
      {{Region::router, out}, Space::same, Space::each},
      {{Region::embedding, out}, Space::each, Space::rows},
      {{Region::head, in}, Space::rows, Space::each}}},
    {"Fold",
     "experts = \"fold\"\n",
     {{{Region::router, in}, Space::same, Space::rows},
      {{Region::router, out}, Space::rows, Space::rows},
      {{Region::experts, in}, Space::same, Space::rows},
      {{Region::experts, out}, Space::rows, Space::same}}},
    {"FoldCutRows",
     "experts = \"fold\"\nsequence_parallel = true\n",
     {{{Region::ffn, in}, Space::rows, Space::each},
      {{Region::router, in}, Space::rows, Space::rows},
      {{Region::router, out}, Space::rows, Space::rows},
      {{Region::experts, in}, Space::rows, Space::rows},
      {{Region::experts, out}, Space::rows, Space::rows}}},
};

constexpr std::int64_t tokens = 24, columns = 5;

// A rank's part of a random point, and what it adds to an inner product.
Values random_part(Space space, std::uint32_t seed, int rank, int ranks) {
  std::mt19937 random(space == Space::same ? seed : seed + 1000 * static_cast<std::uint32_t>(rank + 1));
  std::normal_distribution<float> normal;
  Values values(static_cast<std::size_t>((space == Space::rows ? tokens / ranks : tokens) * columns));
  for (float& v : values) {
    v = normal(random);
  }
  return values;
}

double inner_part(Space space, const Values& a, const Values& b, int rank) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return space == Space::same && rank != 0 ? 0 : sum;
}

class Boundaries : public testing::TestWithParam<std::tuple<Case, int>> {};

TEST_P(Boundaries, AreConjugatePairs) {
  const auto& [layout_case, ranks] = GetParam();
  const Config config = experiment({}, fmt::format("[plugins.tensor]\nsize = {}\n{}", ranks, layout_case.keys));
  struct Found {
    double forward = 0, backward = 0;
    std::vector<Values> to, from;  // of each rank
  };
  std::vector<Found> found(layout_case.pairs.size(),
                           {.to = std::vector<Values>(ranks), .from = std::vector<Values>(ranks)});
  std::mutex mutex;
  run_threads(ranks, [&, &pairs = layout_case.pairs, n = ranks](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto device = make_device("guarded", 1);
    const auto stream = device->make_main_stream();
    Session session(config);
    session.plan(rank, &communicator, device.get());
    auto put = [&](const Values& values) {
      const std::int64_t rows = static_cast<std::int64_t>(values.size()) / columns;
      const Tensor t = device->empty(DType::f32, {rows, columns});
      stream->upload(t, values.data());
      return t;
    };
    auto get = [&](const Tensor& t) {
      Values values(static_cast<std::size_t>(t.elements()));
      stream->download(values.data(), t);
      return values;
    };
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const auto& [site, from, to] = pairs[i];
      const Values x = random_part(from, 1, rank, n), y = random_part(to, 2, rank, n);
      const Values fx = get(session.plan().cross(site, put(x), *stream));
      const Values fy = get(session.plan().cross_back(site, put(y), *stream));
      const std::lock_guard lock(mutex);
      found[i].forward += inner_part(to, fx, y, rank);
      found[i].backward += inner_part(from, x, fy, rank);
      found[i].to[rank] = fx;
      found[i].from[rank] = fy;
    }
  });
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [site, from, to] = layout_case.pairs[i];
    SCOPED_TRACE(fmt::format("{} {}", site.side == in ? "entering" : "leaving", name_of(site.region)));
    EXPECT_NEAR(found[i].forward, found[i].backward, 1e-5 * (1 + std::abs(found[i].forward)));
    for (std::size_t rank = 1; rank < static_cast<std::size_t>(ranks); ++rank) {
      EXPECT_TRUE(to != Space::same || found[i].to[rank] == found[i].to[0]) << "other bits on rank " << rank;
      EXPECT_TRUE(from != Space::same || found[i].from[rank] == found[i].from[0]) << "other bits on rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TensorAxis, Boundaries, testing::Combine(testing::ValuesIn(cases), testing::Values(2, 3, 4)),
                         [](const auto& made) {
                           return fmt::format("{}{}", std::get<0>(made.param).name, std::get<1>(made.param));
                         });

}  // namespace
}  // namespace orthant::boundaries_test
