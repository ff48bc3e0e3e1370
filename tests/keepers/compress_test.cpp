// The plugin "compress": compressed sums of gradients and of Adam's momentum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/keepers/plugins.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::keepers_test::compress_test {
namespace {

namespace fs = std::filesystem;
using run_test::ProgramFolder;
using test::experiment;
using test::joined;
using testing::HasSubstr;
using testing::IsEmpty;
using Values = std::vector<float>;

std::string compress(const std::string& keys = "") {
  return "[plugins.compress]\n" + keys;
}
std::string data(int size, const std::string& keys = "") {
  return fmt::format("[plugins.data]\nsize = {}\n{}", size, keys);
}
const std::string mixed = "[plugins.pipeline]\nsize = 2\n" + data(2) + "[plugins.tensor]\nsize = 2\n";
const std::string methods[] = {"method = \"signs\"\n", "method = \"int8\"\nblock = 32\n",
                               "method = \"low_rank\"\nrank = 2\n"};
const test::Overrides tied = {"model.tie_embeddings=true"};
// The plugin is loaded for its optimizer too.
const test::Overrides onebit = {R"(optimizer.name="onebit_adam")", "optimizer.freeze_after=2"};

struct Case {
  const char* name;
  std::string plugins;
  test::Overrides overrides = tied;
};

TEST(Compress, ResumesBitForBit) {
  std::vector<Case> cases = {{"expert", compress(methods[0]) + data(4, "zero = 1\n") + "[plugins.expert]\nsize = 2\n"},
                             {"onebit", compress() + data(2, "zero = 1\n"), onebit},
                             {"onebit_mixed", compress() + mixed, joined(onebit, tied)}};
  for (const std::string& method : methods) {
    cases.push_back({method.c_str(), compress(method) + mixed});
  }
  for (const Case& c : cases) {
    expect_resumes(experiment(c.overrides, c.plugins), 3, 5, c.name);
  }
}

// Ranks of a tensor axis hold copies of some parameters beside parts of others, and code them alike.
TEST(Compress, CopiesStayEqual) {
  for (const std::string& method : methods) {
    EXPECT_THAT(take_snapshot(experiment(tied, compress(method) + mixed), 3).replica_differences, IsEmpty()) << method;
  }
  EXPECT_THAT(take_snapshot(experiment(joined(onebit, tied), compress() + mixed), 4).replica_differences, IsEmpty());
}

// With SGD of rate 1 and no clipping, weights lose exactly what was sent. Nothing is lost: after a step, what was sent
// and what is left over make the gradient.
TEST(Compress, WhatIsSentAndWhatIsLeftIsTheGradient) {
  const test::Overrides plain = plain_sgd();
  const Snapshot gradient = take_snapshot(experiment(plain, data(4)), 1);
  for (const std::string& method : methods) {
    const ProgramFolder folder;
    const Config config = experiment(plain, compress(method) + data(4));
    const fs::path before = pass_through(config, {}, 0, 0, folder.path("before")).saved;
    const fs::path after = pass_through(config, {}, 0, 1, folder.path("after")).saved;
    double sent = 0, lost = 0;
    for (const auto& [name, whole_gradient] : gradient.gradients[0]) {
      const Values w0 = read_whole(CheckpointReader(before), name), w1 = read_whole(CheckpointReader(after), name);
      const Values left = summed_state(after, "compress/residual", name);
      const Values of_server = method.find("low_rank") == std::string::npos
                                   ? summed_state(after, "compress/server", name)
                                   : Values(left.size(), 0.0f);
      Values sum(left.size());
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const float moved = w0[i] - w1[i], kept = left[i] + of_server[i];
        sum[i] = moved + kept;
        sent += std::abs(moved);
        lost += std::abs(kept);
      }
      EXPECT_LT(test::relative_difference(sum, whole_gradient), 1e-4) << name << " " << method;
    }
    EXPECT_GT(sent, 0) << method;
    EXPECT_GT(lost, 0) << method;
  }
}

TEST(Compress, WhatIsNoMatrixIsSummedWhole) {
  const Snapshot whole = take_snapshot(experiment({}, data(2)), 1);
  const Snapshot coded = take_snapshot(experiment({}, compress("method = \"low_rank\"\nrank = 3\n") + data(2)), 1);
  int vectors = 0;
  for (const auto& [name, gradient] : whole.gradients[0]) {
    if (name.find("norm") != std::string::npos) {
      EXPECT_LT(test::relative_difference(coded.gradients[0].at(name), gradient), 1e-6) << name;
      ++vectors;
    }
  }
  EXPECT_GT(vectors, 0);
}

TEST(Compress, WarmUpChangesNoBit) {
  for (const std::string& method : methods) {
    const Config with = experiment(tied, compress(method + "warm_up = 2\n") + mixed), without = experiment(tied, mixed);
    EXPECT_EQ(first_difference_in_bits(take_snapshot(with, 2), take_snapshot(without, 2)), "") << method;
  }
}

TEST(Compress, AnotherLayoutGetsTheSum) {
  const ProgramFolder folder;
  const Passed written = pass_through(experiment({}, compress() + data(4)), {}, 0, 2, folder.path("written"));
  for (const std::string& layout :
       {compress() + data(2), compress() + "[plugins.tensor]\nsize = 2\n" + data(2, "zero = 1\n")}) {
    const Passed read = pass_through(experiment({}, layout), written.saved, 2, 2, folder.path("read"));
    EXPECT_THAT(read.notes, testing::Each(HasSubstr("of plugin 'compress' is of another layout")));
    for (const std::string& name : CheckpointReader(written.saved).names()) {
      if (!name.starts_with("plugins/") && !name.starts_with("optimizer/")) {
        for (const char* state : {"residual", "server"}) {
          EXPECT_LT(test::relative_difference(summed_state(read.saved, std::string("compress/") + state, name),
                                              summed_state(written.saved, std::string("compress/") + state, name)),
                    1e-6)
              << name;
        }
      }
    }
  }
}

TEST(Compress, RefusesWhatItCannotSum) {
  EXPECT_THAT(test::refusal({}, compress() + data(2, "zero = 2\n")),
              testing::AllOf(HasSubstr("need whole gradients"), HasSubstr("zero = 0 or zero = 1")));
  EXPECT_THAT(test::refusal({}, data(2) + compress()), HasSubstr("put [plugins.compress] before [plugins.data]"));
  EXPECT_THAT(test::refusal(onebit, compress("method = \"low_rank\"\n") + data(2)),
              HasSubstr("needs sums of its momentum"));
  EXPECT_THAT(test::refusal(onebit, compress("warm_up = 3\n") + data(2)), HasSubstr("optimizer.freeze_after"));
  EXPECT_THAT(test::refusal(joined(onebit, {R"(optimizer.state_dtype="8bit")"}), compress() + data(2)),
              HasSubstr("onebit_adam"));
  EXPECT_THAT(test::refusal(onebit, compress() + data(2) + "[plugins.offload]\nstates = \"host\"\n"),
              HasSubstr("leave the offload of states out"));
}

// Two steps of AdamW, then steps with the second moment of the second: written out in fp64 from the gradients that
// AdamW meets at the same weights.
TEST(OnebitAdam, IsAdamWithAFrozenSecondMoment) {
  const test::Overrides common = {"optimizer.eps=1e-8", "optimizer.clip_grad_norm=0.0",
                                  R"(optimizer.schedule="constant")", "optimizer.lr=0.01",
                                  "optimizer.weight_decay=0.1"};
  const Snapshot adam = take_snapshot(experiment(common), 2), next = take_snapshot(experiment(common), 3);
  const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, lr = 0.01;
  const auto check = [&](const Snapshot& found, double tolerance) {
    for (const auto& [name, gradient] : next.gradients[2]) {
      const Values &w = adam.state.at("weight/" + name), &m = adam.state.at("moment1/" + name),
                   &v = adam.state.at("moment2/" + name);
      const Values &w3 = found.state.at("weight/" + name), &m3 = found.state.at("moment1/" + name);
      EXPECT_LT(test::relative_difference(found.state.at("moment2/" + name), v), 1e-5) << name << " stays";
      const double decay = name.find("norm") == std::string::npos ? 0.1 : 0.0;
      Values expected_m(w.size()), change(w.size()), moved(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) {
        const auto wide = [&](const Values& x) { return static_cast<double>(x[i]); };
        const double momentum = beta1 * wide(m) + (1 - beta1) * wide(gradient);
        expected_m[i] = static_cast<float>(momentum);
        change[i] =
            static_cast<float>(lr * (momentum / (std::sqrt(wide(v) / (1 - beta2 * beta2)) + eps) + decay * wide(w)));
        moved[i] = static_cast<float>(wide(w) - wide(w3));
      }
      EXPECT_LT(test::relative_difference(m3, expected_m), tolerance) << name;
      EXPECT_LT(test::relative_difference(moved, change), std::max(20 * tolerance, 1e-2)) << name;  // near 1: a norm
    }
  };
  check(take_snapshot(experiment(joined(common, onebit), compress()), 3), 1e-5);
  check(take_snapshot(experiment(joined(common, onebit), compress("method = \"int8\"\nblock = 16\n") + data(2)), 3),
        0.03);
}

// A run of AdamW's that goes on as onebit_adam, its warm-up long over, goes on with AdamW's momentum.
TEST(OnebitAdam, BeginsWithTheMomentumThatTheCheckpointHas) {
  const ProgramFolder folder;
  const test::Overrides common = {"optimizer.clip_grad_norm=0.0"};
  for (const std::string& zero : {std::string(), std::string("zero = 1\n")}) {
    const Config adam = experiment(common, data(2, zero));
    const Passed before = pass_through(adam, {}, 0, 3, folder.path("before"));
    const Passed expected = pass_through(adam, before.saved, 3, 4, folder.path("expected"));
    const Config onebit_now =
        experiment(joined(common, onebit), compress("method = \"int8\"\nblock = 16\n") + data(2, zero));
    const Passed found = pass_through(onebit_now, before.saved, 3, 4, folder.path("found"));
    const CheckpointReader a(found.saved), b(expected.saved);
    for (const std::string& name : b.names()) {
      if (name.starts_with("optimizer/moment1/")) {
        EXPECT_LT(test::relative_difference(read_whole(a, name), read_whole(b, name)), 0.03) << name;
      }
    }
  }
}

TEST(OnebitAdam, IsAdamWBeforeItsMomentIsFrozen) {
  const Config adam = experiment(tied, mixed);
  const Config with = experiment(joined(tied, onebit), compress() + mixed);
  EXPECT_EQ(first_difference_in_bits(take_snapshot(with, 2), take_snapshot(adam, 2)), "");
}

}  // namespace
}  // namespace orthant::keepers_test::compress_test
