// A plugin with state of its own, built out of tree: gradients sums of the largest elements, with error feedback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "core/session/session.h"
#include "tests/keepers/plugins.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::keepers_test::topk_sums_test {
namespace {

namespace fs = std::filesystem;
using run_test::ProgramFolder;
using test::experiment;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string topk = table("topk_sums", "density = 0.1\n");
const std::string whole = table("topk_sums", "density = 1.0\n");
std::string data(int size, const std::string& keys = "") {
  return fmt::format("[plugins.data]\nsize = {}\n{}", size, keys);
}
const std::string mixed = "[plugins.pipeline]\nsize = 2\n" + data(2) + "[plugins.tensor]\nsize = 2\n";
const test::Overrides tied = {"model.tie_embeddings=true"};

struct Case {
  const char* name;
  std::string plugins;
};
const Case cases[] = {{"data", topk + data(4)},
                      {"zero1", topk + data(2, "zero = 1\n")},
                      {"zero2", topk + data(2, "zero = 2\n")},
                      {"zero3_expert", topk + data(4, "zero = 3\nwhole_below = 0\n") + "[plugins.expert]\nsize = 2\n"},
                      {"pipeline_tensor", topk + mixed},
                      {"without_data", topk + "[plugins.sequence]\nsize = 2\n"}};

TEST(TopkSums, ResumesBitForBit) {
  for (const Case& c : cases) {
    expect_resumes(experiment(tied, c.plugins), 2, 4, c.name);
  }
}

// A plugin without ranks of its own depends on those whose gradients it sees: the advice names all of them. Where no
// other layout is left, the layout without it tells whether anything else is wrong.
TEST(TopkSums, VerifyAdvisesWhatTheReferenceMustKeep) {
  VerifyReport different;
  different.first_difference = "later gradient of step 2 x";
  different.first_step = 2;
  const Config both = experiment(tied, topk + data(2) + "[plugins.tensor]\nsize = 2\n");
  EXPECT_THAT(advice_on(different, both), HasSubstr("--keep topk_sums --keep data compares"));
  EXPECT_THAT(advice_on(different, both, {"topk_sums"}), HasSubstr(" --keep data compares"));
  EXPECT_THAT(advice_on(different, both, {"topk_sums", "data"}),
              testing::AllOf(HasSubstr("is in the reference too"), HasSubstr("is equal to one rank")));
  EXPECT_THAT(
      advice_on(different, experiment(tied, topk + data(2))),
      testing::AllOf(HasSubstr("no reference for it"), HasSubstr("Without [plugins.topk_sums] the layout is equal"),
                     testing::Not(HasSubstr("--keep"))));
}

TEST(TopkSums, OfDensityOneChangesNoBit) {
  for (const std::string& others : {data(4), data(2, "zero = 3\nwhole_below = 0\n"), mixed}) {
    const Config with = experiment(tied, whole + others), without = experiment(tied, others);
    EXPECT_EQ(first_difference_in_bits(take_snapshot(with, 2), take_snapshot(without, 2)), "") << others;
  }
}

// Ranks of a tensor axis hold copies of some parameters beside parts of others: they choose alike in the copies.
TEST(TopkSums, CopiesStayEqual) {
  EXPECT_THAT(take_snapshot(experiment(tied, topk + mixed), 3).replica_differences, IsEmpty());
}

// Indices and values give the bits of the dense sum of the same elements, which data makes of shards.
TEST(TopkSums, SparseAndDenseSumsAreEqual) {
  const Snapshot sparse = take_snapshot(experiment({}, topk + data(2)), 2);
  const Snapshot dense = take_snapshot(experiment({}, topk + data(2, "zero = 2\n")), 2);
  test::expect_same_bits(sparse.gradients[1], dense.gradients[1]);
}

using Values = std::vector<float>;

// With SGD of rate 1 and no clipping, weights lose exactly what was sent. Nothing is lost: after a step, what was sent
// and what is left over make the gradient.
TEST(TopkSums, WhatIsSentAndWhatIsLeftIsTheGradient) {
  const test::Overrides plain = plain_sgd();
  const ProgramFolder folder;
  const Config sparse = experiment(plain, topk + data(4));
  const Snapshot gradient = take_snapshot(experiment(plain, data(4)), 1);
  const fs::path before = pass_through(sparse, {}, 0, 0, folder.path("before")).saved;
  const fs::path after = pass_through(sparse, {}, 0, 1, folder.path("after")).saved;
  int sent = 0, kept = 0;
  for (const auto& [name, whole_gradient] : gradient.gradients[0]) {
    const Values w0 = read_whole(CheckpointReader(before), name), w1 = read_whole(CheckpointReader(after), name);
    const Values left = summed_state(after, "topk_sums/residual", name);
    Values sum(left.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = w0[i] - w1[i] + left[i];
      sent += w0[i] != w1[i] ? 1 : 0;
      kept += w0[i] == w1[i] ? 1 : 0;
    }
    EXPECT_LT(test::relative_difference(sum, whole_gradient), 1e-4) << name;
  }
  EXPECT_GT(sent, 0);
  EXPECT_GT(kept, sent) << "most of the gradient stays at home";
}

// In another layout the first rank gets what all had left over, and none of it is lost.
TEST(TopkSums, AnotherLayoutGetsTheSum) {
  const ProgramFolder folder;
  const Passed written = pass_through(experiment({}, topk + data(4)), {}, 0, 2, folder.path("written"));
  for (const std::string& layout :
       {topk, topk + data(2), topk + "[plugins.tensor]\nsize = 2\n" + data(2, "zero = 1\n")}) {
    const Passed read = pass_through(experiment({}, layout), written.saved, 2, 2, folder.path("read"));
    EXPECT_THAT(read.notes, ElementsAre(HasSubstr("state 'residual' of plugin 'topk_sums' is of another layout")));
    for (const std::string& name : CheckpointReader(written.saved).names()) {
      if (!name.starts_with("plugins/") && !name.starts_with("optimizer/")) {
        EXPECT_LT(test::relative_difference(summed_state(read.saved, "topk_sums/residual", name),
                                            summed_state(written.saved, "topk_sums/residual", name)),
                  1e-6)
            << name;
      }
    }
  }
}

TEST(TopkSums, CheckpointsWithAndWithoutIt) {
  const ProgramFolder folder;
  const Passed with = pass_through(experiment({}, topk + data(2)), {}, 0, 1, folder.path("with"));
  const Passed dropped = pass_through(experiment({}, data(2)), with.saved, 1, 1, folder.path("dropped"));
  EXPECT_THAT(dropped.notes, ElementsAre(HasSubstr("'residual' of plugin 'topk_sums' is left out")));
  const Passed added = pass_through(experiment({}, topk + data(2)), dropped.saved, 1, 1, folder.path("added"));
  EXPECT_THAT(added.notes, ElementsAre(HasSubstr("'residual' of plugin 'topk_sums' is not in the checkpoint")));
}

TEST(TopkSums, BehindWhoeverSumsItIsRefused) {
  EXPECT_THAT(
      test::refusal({}, data(2) + topk),
      HasSubstr("plugin 'topk_sums' sums gradients itself, but 'data' before it would have summed them already: "
                "put [plugins.topk_sums] before [plugins.data]"));
}

}  // namespace
}  // namespace orthant::keepers_test::topk_sums_test
