// run.skip_not_finite: a step that is not finite leaves nothing behind. The reference is a run that never makes these
// steps at all: the trainer is told each step's number, so they can be left out of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::passed_over_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;
using test::TestRank;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int32_t poison = 23;  // a token whose embedding is infinite
const std::string embedding = "model.embed_tokens.weight";

// The configuration's batches, with that token in one sequence of some steps, and nowhere else.
class PoisonedSource final : public BatchSource {
 public:
  PoisonedSource(const Settings& settings, std::set<std::int64_t> steps)
      : source_(make_batch_source(settings)), steps_(std::move(steps)) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    HostBatch batch = cleaned(source_->train(step, first, count));
    constexpr std::int64_t sequence = 5;
    if (steps_.contains(step) && first <= sequence && sequence < first + count) {
      batch.token[static_cast<std::size_t>((sequence - first) * batch.positions + 3)] = poison;
    }
    return batch;
  }
  HostBatch validation(std::int64_t first, std::int64_t count) const override {
    return cleaned(source_->validation(first, count));
  }
  std::int64_t validation_sequences() const override { return source_->validation_sequences(); }
  std::int64_t vocabulary() const override { return source_->vocabulary(); }

 private:
  static HostBatch cleaned(HostBatch batch) {
    std::replace(batch.token.begin(), batch.token.end(), poison, 0);
    return batch;
  }
  std::unique_ptr<BatchSource> source_;
  std::set<std::int64_t> steps_;
};

using Bits = std::map<std::string, std::vector<std::uint32_t>>;

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Weights, states of the optimizer and of gates: all that a rank keeps from step to step.
Bits kept(TestRank& rank) {
  Bits all;
  for (const auto& group : rank.trainer().parameters().groups()) {
    for (const Param& p : group->params) {
      with_held(rank.session().plan().keepers(), *group, Held::saved, {.stream = rank.stream()}, [&](Stream& home) {
        int number = 0;
        for (const StatePiece& part : state_pieces(*group, p)) {
          std::vector<float> piece(static_cast<std::size_t>(part.piece.elements()));
          part.download(piece.data(), part.stream(rank.stream(), home));
          all[fmt::format("{} {} {}", p.spec.name, part.state, number++)] = bits_of(piece);
        }
      });
    }
  }
  for (const GateState& gate : rank.trainer().parameters().gate_states()) {
    std::vector<float> host(static_cast<std::size_t>(gate.value.elements()));
    rank.stream().download(host.data(), gate.value);
    all[gate.name] = bits_of(host);
  }
  return all;
}

// The initial weights of a model, with that embedding: as a checkpoint, which any layout and any storage reads.
class Poisoned {
 public:
  explicit Poisoned(const Overrides& model) {
    run_threads(1, [&](Communicator& communicator) {
      TestRank rank(experiment(model), communicator);
      std::vector<float> values = rank.weight(embedding);
      const std::size_t width = values.size() / 24;
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(poison * width), width, INFINITY);
      rank.set_weight(embedding, values);
      Group& world = rank.session().mesh().world_group("save");
      checkpoint_ = save_checkpoint(folder_.path() / "checkpoints", 1, rank.session().plan(),
                                    rank.trainer().parameters(), {}, {communicator, world}, rank.stream());
    });
  }
  void load(TestRank& rank) const {
    load_weights(CheckpointReader(checkpoint_), rank.session().plan(), rank.trainer().parameters(), rank.stream());
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path checkpoint_;
};

struct Outcome {
  Bits kept;
  std::vector<double> losses;             // of the steps that are applied
  std::vector<std::int64_t> passed_over;  // steps
};

// Eight steps of a rank. leave_out: those that are poisoned are not made.
Outcome train(TestRank& rank, const Poisoned& weights, const std::set<std::int64_t>& poisoned, bool leave_out) {
  weights.load(rank);
  Outcome outcome;
  for (std::int64_t step = 0; step < 8; ++step) {
    if (leave_out && poisoned.contains(step)) {
      continue;
    }
    const StepReport report = rank.trainer().step(step);
    if (report.passed_over) {
      EXPECT_FALSE(std::isfinite(report.loss) && std::isfinite(report.grad_norm));
      outcome.passed_over.push_back(step);
    } else {
      outcome.losses.push_back(report.loss);
    }
  }
  outcome.kept = kept(rank);
  return outcome;
}

const std::set<std::int64_t> poisoned = {1, 2, 5};

class PassedOver : public testing::TestWithParam<test::Model> {};

TEST_P(PassedOver, LeavesNothingBehind) {
  const Config config = experiment(joined(GetParam().overrides, {"run.skip_not_finite=2"}));
  Overrides of_model = GetParam().overrides;
  std::erase_if(of_model, [](const std::string& one) { return !one.starts_with("mo"); });  // model, moe
  const Poisoned weights(of_model);
  const PoisonedSource source(config.settings, poisoned);
  OneRank with(config, &source), without(config, &source);
  const Outcome passed = train(*with, weights, poisoned, false);
  const Outcome left_out = train(*without, weights, poisoned, true);
  EXPECT_THAT(passed.passed_over, ElementsAre(1, 2, 5));
  EXPECT_EQ(passed.losses, left_out.losses);
  ASSERT_EQ(passed.kept.size(), left_out.kept.size());
  for (const auto& [name, values] : passed.kept) {
    EXPECT_EQ(values, left_out.kept.at(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, PassedOver,
    testing::Values(test::Model{"adamw", {}}, test::Model{"sgd", {"optimizer.name=\"sgd\""}},
                    test::Model{"muon", {"optimizer.name=\"muon\""}},
                    test::Model{"few_bits",
                                {"run.dtype=\"bf16\"", "optimizer.master_weights=\"none\"",
                                 "optimizer.state_dtype=\"8bit\"", "model.d_model=32", "model.d_ff=32"}},
                    test::Model{"averaged", {"optimizer.ema_decay=0.9", "optimizer.no_decay=[\"*\"]"}},
                    test::Model{"bias", {"moe.router=\"bias\"", "moe.score=\"sigmoid\""}},
                    test::Model{"late", {"run.device=\"late\""}}),
    [](const auto& one) { return one.param.name; });

TEST(PassedOverSteps, AreTheSameInEveryLayout) {
  const Config alone = experiment({"run.skip_not_finite=2"});
  const Poisoned weights({});
  const PoisonedSource source(alone.settings, poisoned);
  OneRank one(alone, &source);
  const Outcome expected = train(*one, weights, poisoned, false);
  for (const std::string& plugins :
       {test::axes(2, 2), test::axes(2) + "zero = 3\n", std::string("[plugins.pipeline]\nsize = 2\n"),
        std::string("[plugins.offload]\nstates = \"host\"\nclip = \"speculative\"\n")}) {
    SCOPED_TRACE(plugins);
    const Config config = experiment({"run.skip_not_finite=2"}, plugins);
    std::map<std::string, Outcome> outcomes[2];
    std::mutex mutex;
    for (const bool leave_out : {false, true}) {
      run_threads(check_layout(config), [&](Communicator& communicator) {
        TestRank rank(config, communicator, &source);
        Outcome outcome = train(rank, weights, poisoned, leave_out);
        const std::lock_guard lock(mutex);
        outcomes[leave_out ? 1 : 0][std::to_string(communicator.rank())] = std::move(outcome);
      });
    }
    for (const auto& [rank, passed] : outcomes[0]) {
      EXPECT_EQ(passed.passed_over, expected.passed_over) << "rank " << rank;
      EXPECT_EQ(passed.kept, outcomes[1].at(rank).kept) << "rank " << rank;
      ASSERT_EQ(passed.losses.size(), expected.losses.size());
      for (std::size_t i = 0; i < passed.losses.size(); ++i) {
        EXPECT_NEAR(passed.losses[i], expected.losses[i], 1e-4 * expected.losses[i]);
      }
    }
  }
}

// Without a step that is applied in between, one more than may be in a row ends the run, by the message of ever.
TEST(PassedOverSteps, OneMoreInARowEndsTheRun) {
  const Config config = experiment({"run.skip_not_finite=2"});
  const Poisoned weights({});
  const PoisonedSource source(config.settings, {1, 2, 4, 5, 6});
  OneRank rank(config, &source);
  weights.load(*rank);
  for (std::int64_t step = 0; step < 6; ++step) {
    EXPECT_EQ(rank->trainer().step(step).passed_over, step != 0 && step != 3) << step;
  }
  EXPECT_EQ(rank->trainer().passed_over(), 2);
  const Bits before = kept(*rank);
  EXPECT_THAT(test::error_of([&] { rank->trainer().step(6); }), HasSubstr("step 7 is not applied: loss"));
  EXPECT_EQ(kept(*rank), before);

  // A run that goes on from there counts on.
  OneRank resumed(config, &source);
  weights.load(*resumed);
  resumed->trainer().resume_behind(2);
  EXPECT_THAT(test::error_of([&] { resumed->trainer().step(6); }), HasSubstr("step 7 is not applied"));
  OneRank anew(config, &source);
  weights.load(*anew);
  EXPECT_TRUE(anew->trainer().step(6).passed_over);
}

// Two steps under way: whether the later one counts depends on the earlier one, which nobody has heard of.
TEST(PassedOverSteps, AreTheSameWhereReportsComeLate) {
  const Poisoned weights({});
  for (const int skip : {1, 2}) {
    SCOPED_TRACE(skip);
    const Overrides overrides = {"run.device=\"late\"", fmt::format("run.skip_not_finite={}", skip)};
    const Config config = experiment(overrides);
    const PoisonedSource source(config.settings, {2, 3, 5});
    OneRank late(config, &source), waiting(config, &source);
    ASSERT_TRUE(late->trainer().reports_late());
    for (OneRank* rank : {&late, &waiting}) {
      weights.load(**rank);
    }
    const std::int64_t steps = skip == 1 ? 3 : 8;  // with 1, the fourth ends the run
    for (std::int64_t step = 0; step < steps; ++step) {
      waiting->trainer().step(step);
    }
    late->trainer().begin(0);
    for (std::int64_t step = 0; step < steps; ++step) {
      if (step + 1 < 8) {
        late->trainer().begin(step + 1);
      }
      EXPECT_EQ(late->trainer().finish().passed_over, step == 2 || step == 3 || step == 5);
    }
    if (skip == 1) {
      late->trainer().begin(4);  // finite, but behind the one that ends the run
      EXPECT_THAT(test::error_of([&] { late->trainer().finish(); }), HasSubstr("step 4 is not applied"));
    }
    EXPECT_EQ(kept(*late), kept(*waiting));
  }
}

class Counting final : public Observer {
 public:
  explicit Counting(std::vector<std::int64_t>& seen) : seen_(seen) {}
  void after_step(const StepReport& report, Changes&, std::map<std::string, double>&) override {
    seen_.push_back(report.step);
  }

 private:
  std::vector<std::int64_t>& seen_;
};
class CountingHook final : public Hook {
 public:
  explicit CountingHook(std::vector<std::int64_t>& seen) : seen_(seen) {}
  std::unique_ptr<Observer> make(const Settings&) const override { return std::make_unique<Counting>(seen_); }

 private:
  std::vector<std::int64_t>& seen_;
};

TEST(PassedOverSteps, AreNotShownToHooks) {
  Config config = experiment({"run.skip_not_finite=2"});
  std::vector<std::int64_t> seen;
  const auto catalogue = built_in_catalogue();
  catalogue->add<Hook>("counting", "A test.", std::make_shared<CountingHook>(seen));
  config.settings.catalogue = catalogue;
  const PoisonedSource source(config.settings, poisoned);
  OneRank rank(config, &source);
  train(*rank, Poisoned({}), poisoned, false);
  EXPECT_THAT(seen, ElementsAre(0, 3, 4, 6, 7));
}

TEST(PassedOverSteps, AreRefusedWhereTheyWouldLeaveSomething) {
  EXPECT_THAT(
      test::refusal({"run.skip_not_finite=1", "optimizer.in_backward=true", "optimizer.clip_grad_norm=0"}, ""),
      HasSubstr("[run] skip_not_finite: with optimizer.in_backward a step that is not finite has updated some layers"));
  const std::string lazy = "[plugins.offload]\nstates = \"host\"\nexpert_states = \"lazy\"\n";
  EXPECT_THAT(test::refusal({}, lazy), HasSubstr("accepted"));
  EXPECT_THAT(test::refusal({"run.skip_not_finite=1"}, lazy), HasSubstr("expert_states = \"lazy\" makes up for"));
  const std::string workers =
      fmt::format("[plugins.local_sgd]\npath = \"{}\"\nsize = 2\nevery = 2\n", paths::out_of_tree("local_sgd"));
  EXPECT_THAT(test::refusal({}, workers), HasSubstr("accepted"));
  EXPECT_THAT(test::refusal({"run.skip_not_finite=1"}, workers), HasSubstr("2 workers train by themselves"));
}

}  // namespace
}  // namespace orthant::passed_over_test
