// Updates before the end of the backward pass, for good (optimizer.in_backward) or tried (plugins.offload.clip =
// "speculative"), have the bits of updates at the end of the step, and hold what they promise when a step goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/dry_run/planning.h"
#include "parallel/local/thread_world.h"
#include "tests/support/error_of.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::early_updates_test {
namespace {

using test::error_of;
using test::experiment;
using test::joined;
using test::Overrides;
using testing::AllOf;
using testing::HasSubstr;

struct Layout {
  const char* name;
  Overrides overrides;
  std::string plugins;
};

std::string zero(int stage, int ranks = 2, const std::string& more = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\nwhole_below = 0\n{}", ranks, stage, more);
}
std::string offload(const std::string& keys) {
  return fmt::format("[plugins.offload]\ndirectory = \"{}\"\n{}", testing::TempDir(), keys);
}
std::string out_of_tree(const std::string& name) {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n", name, paths::out_of_tree(name));
}
const std::string pipeline = "[plugins.pipeline]\nsize = 2\n";
const std::string interleaved = "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n";
const std::string tensor = "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n";
const std::string expert = "[plugins.expert]\nsize = 2\n";
const std::string host = "states = \"host\"\n";
const std::string all_on_host = host + "gradients = \"host\"\nweights = \"host\"\nactivations = \"host\"\n";
const std::string all_on_disk = "states = \"nvme\"\ngradients = \"nvme\"\nweights = \"nvme\"\nactivations = \"nvme\"\n";

const Layout layouts[] = {
    {"one_rank", {}, ""},
    {"micro_batches", {"batch.micro_batch=2"}, ""},
    {"bf16_recompute", {R"(run.dtype="bf16")", R"(memory.recompute="full")"}, ""},
    {"tied", {"model.tie_embeddings=true", "batch.micro_batch=4"}, ""},
    {"zero_0", {"batch.micro_batch=2"}, zero(0)},
    {"zero_1", {R"(run.dtype="bf16")", "optimizer.ema_decay=0.9"}, zero(1) + expert},
    {"zero_2", {"batch.micro_batch=2", R"(optimizer.lr_of=["*.w1.weight"])", "optimizer.lr_scales=[2]"}, zero(2)},
    {"zero_3", {}, zero(3, 4) + expert},
    {"zero_3_layered", {"batch.micro_batch=2", R"(run.dtype="bf16")"}, zero(3, 2, "layered = true\n")},
    {"zero_3_hybrid", {"batch.micro_batch=2"}, zero(3, 4, "shard_ranks = 2\n")},
    {"tensor", {R"(run.dtype="bf16")"}, tensor},
    {"tensor_zero_1", {"batch.micro_batch=2"}, zero(1) + tensor},
    {"pipeline_tied", {"model.tie_embeddings=true", "model.layers=3", "batch.micro_batch=2"}, pipeline + zero(1)},
    {"interleaved", {"model.layers=4", "batch.micro_batch=2"}, interleaved},
    {"all_axes", {"batch.micro_batch=2"}, pipeline + zero(3) + tensor + expert},
    {"adafactor_zero_1",
     {R"(optimizer.name="adafactor")", R"(run.dtype="bf16")", "batch.micro_batch=2"},
     zero(1) + expert + out_of_tree("adafactor")},
    {"adafactor_zero_3_tensor", {R"(optimizer.name="adafactor")"}, zero(3) + tensor + out_of_tree("adafactor")},
    {"lamb_zero_2", {R"(optimizer.name="lamb")"}, zero(2) + out_of_tree("lamb")},
};

const char* const devices[] = {"cpu", "guarded", "late", "late_sides"};

Snapshot trained(Config config, int steps, const char* device = "cpu") {
  config.settings.run.device = device;
  return take_snapshot(config, steps, Halves::together);
}

// --- for good

class InBackward : public testing::TestWithParam<std::size_t> {};

TEST_P(InBackward, HasTheBitsOfUpdatesAtTheEnd) {
  const Layout& layout = layouts[GetParam()];
  const Overrides end = joined(layout.overrides, {"optimizer.clip_grad_norm=0"});
  const Overrides early = joined(end, {"optimizer.in_backward=true"});
  const Snapshot at_the_end = trained(experiment(end, layout.plugins), 3);
  for (const char* device : devices) {
    test::expect_same_bits(trained(experiment(early, layout.plugins), 3, device), at_the_end, device);
  }
  // With states that wait elsewhere.
  const std::string keys[] = {host, all_on_disk, all_on_host + "device_fraction = 0.5\n"};
  const std::string plugins = layout.plugins + offload(keys[GetParam() % 3]);
  const char* device = devices[GetParam() % std::size(devices)];
  test::expect_same_bits(trained(experiment(early, plugins), 3, device), at_the_end, keys[GetParam() % 3] + device);
}

INSTANTIATE_TEST_SUITE_P(Parity, InBackward, testing::Range<std::size_t>(0, std::size(layouts)),
                         [](const auto& number) { return layouts[number.param].name; });

TEST(InBackward, HoldsForOtherOptimizers) {
  for (const char* name : {"sgd", "muon"}) {
    for (const std::string& plugins : {std::string(), zero(1) + tensor}) {
      const Overrides end = {"optimizer.clip_grad_norm=0", fmt::format("optimizer.name=\"{}\"", name)};
      const Config early = experiment(joined(end, {"optimizer.in_backward=true"}), plugins);
      const Snapshot at_the_end = trained(experiment(end, plugins), 3);
      for (const char* device : {"guarded", "late", "late_sides"}) {
        test::expect_same_bits(trained(early, 3, device), at_the_end, fmt::format("{} {}", name, device));
      }
    }
  }
}

// As `verify` and the conformance suite see it.
TEST(InBackward, GradientsThatAreLookedAtStayUntilTheUpdate) {
  const Overrides end = {"optimizer.clip_grad_norm=0"};
  const Overrides early = joined(end, {"optimizer.in_backward=true"});
  test::expect_same_bits(take_snapshot(experiment(early, zero(2)), 2), take_snapshot(experiment(end, zero(2)), 2));
}

// --- its memory

struct Peaks {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0, all = 0;  // bytes: at the moment of the peak, all kinds at that moment
  std::int64_t planned = 0;
};

Peaks peaks_of(const Overrides& overrides) {
  // Wide layers, few tokens: the peak is where gradients are.
  const Config config = experiment(
      joined({"optimizer.clip_grad_norm=0", "model.layers=12", "batch.sequences=1", "model.d_model=64"}, overrides));
  test::OneRank rank(config);
  for (int step = 0; step < 2; ++step) {
    rank->trainer().step(step);
  }
  rank->stream().synchronize();
  const MemoryUse used = rank->stream().device().memory();
  return {.parameters = rank->trainer().parameters().elements(),
          .gradients = used.peak_kinds[MemoryKind::gradients],
          .all = used.peak_bytes,
          .planned = plan_rank(config, 0).memory.peak};
}

TEST(InBackward, HoldsTheGradientsOfALayerOrTwo) {
  const Peaks end = peaks_of({}), early = peaks_of({"optimizer.in_backward=true"});
  EXPECT_EQ(end.gradients, 4 * end.parameters);
  EXPECT_LE(early.gradients, 4 * early.parameters / 6);
  EXPECT_LE(early.all, end.all - 4 * end.parameters / 2);
  EXPECT_EQ(early.all, early.planned);
  EXPECT_EQ(end.all, end.planned);
}

// --- tried

struct Rollbacks {
  Snapshot run;
  double counted = 0;
};

Rollbacks speculating(const Overrides& overrides, const std::string& plugins, const std::string& keys, int steps,
                      const char* device) {
  Rollbacks found;
  found.run = trained(experiment(overrides, plugins + offload(keys + "clip = \"speculative\"\n")), steps, device);
  found.counted = found.run.reports.back().metrics.at("offload.rollbacks");
  return found;
}

class Speculation : public testing::TestWithParam<std::size_t> {};

// Never clipped, sometimes, always.
TEST_P(Speculation, HasTheBitsOfTheExactClipping) {
  const Layout& layout = layouts[GetParam()];
  const std::string places[] = {host, host + "gradients = \"host\"\n", all_on_host,
                                host + "gradients = \"nvme\"\nweights = \"nvme\"\n", host + "device_fraction = 0.5\n"};
  constexpr int steps = 4;
  std::vector<double> norms;
  for (const StepReport& report :
       trained(experiment(joined(layout.overrides, {"optimizer.clip_grad_norm=0"}), layout.plugins), steps).reports) {
    norms.push_back(report.grad_norm);
  }
  std::sort(norms.begin(), norms.end());
  std::size_t next = GetParam();
  for (const double clip : {0.0, (norms[1] + norms[2]) / 2, norms[0] / 100}) {
    const Overrides overrides = joined(layout.overrides, {fmt::format("optimizer.clip_grad_norm={}", clip)});
    const Snapshot exact = trained(experiment(overrides, layout.plugins), steps);
    const auto clipped = std::count_if(exact.reports.begin(), exact.reports.end(),
                                       [&](const StepReport& r) { return clip > 0 && r.grad_norm > clip; });
    for (int i = 0; i < 2; ++i, ++next) {
      const std::string& keys = places[next % std::size(places)];
      const char* device = devices[(next + next / 4) % std::size(devices)];
      const std::string what = fmt::format("clip {} {}{}", clip, keys, device);
      const Rollbacks tried = speculating(overrides, layout.plugins, keys, steps, device);
      test::expect_same_bits(tried.run, exact, what);
      EXPECT_EQ(tried.counted, static_cast<double>(clipped)) << what;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Speculation, testing::Range<std::size_t>(0, std::size(layouts)),
                         [](const auto& number) { return layouts[number.param].name; });

// --- a step that is not finite

std::string infinite(const std::string& group) {
  return fmt::format(
      "[plugins.broken]\npath = \"{}/liborthant_plugin_broken.so\"\nfault = \"not_finite\"\ngroup = \"{}\"\n",
      paths::build("tests/parity"), group);
}

// The parameters that a step with infinite gradients of `layer 0` changes, and what it says.
struct Failed {
  std::vector<std::string> changed, kept;
  std::string error;
};

Failed failed_step(const Overrides& overrides, const std::string& plugins) {
  test::OneRank rank(experiment(overrides, infinite("layer 0") + plugins));
  const auto all = [&](const std::string& name) {
    std::vector<float> values = rank->weight(name);
    for (const char* state : {"moment1", "moment2"}) {
      const std::vector<float> more = rank->state(state, name);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  };
  test::Tensors before;
  for (const std::string& name : rank->names()) {
    before[name] = all(name);
  }
  Failed found;
  found.error = error_of([&] { rank->trainer().step(0); });
  for (const std::string& name : rank->names()) {
    (test::same_bits(all(name), before[name]) ? found.kept : found.changed).push_back(name);
  }
  return found;
}

constexpr const char* told = "the backward pass first overflows in the gradients of layer 0 on rank 0";

TEST(Speculation, LeavesNothingOfAStepThatIsNotFinite) {
  for (const char* clip : {"0", "1", "1e-3"}) {
    for (const char* clips : {"exact", "speculative"}) {
      const Failed step = failed_step({fmt::format("optimizer.clip_grad_norm={}", clip)},
                                      offload(fmt::format("states = \"host\"\nclip = \"{}\"\n", clips)));
      EXPECT_THAT(step.error, AllOf(HasSubstr("step 1 is not applied: "), HasSubstr(told)));
      EXPECT_THAT(step.changed, testing::IsEmpty()) << clips;
    }
  }
}

// Layers whose own gradient is finite are updated by then: those above, and those below that the fault left alone.
TEST(InBackward, AStepThatIsNotFiniteSpoilsNoWeightAndIsTold) {
  const Failed step = failed_step({"optimizer.clip_grad_norm=0", "optimizer.in_backward=true"}, "");
  EXPECT_THAT(step.error, AllOf(HasSubstr("step 1 is not applied, but for gradients that were finite by themselves"),
                                HasSubstr(told)));
  EXPECT_THAT(step.changed, testing::Contains("lm_head.weight"));
  EXPECT_THAT(step.kept, testing::Contains("model.layers.0.self_attn.q_proj.weight"));
}

// --- refusals

TEST(EarlyUpdates, WhatCannotBeRightIsRefused) {
  const Overrides early = {"optimizer.clip_grad_norm=0", "optimizer.in_backward=true"};
  EXPECT_THAT(error_of([] { experiment({"optimizer.in_backward=true"}); }),
              AllOf(HasSubstr("in_backward: with clip_grad_norm = 1 no layer can be updated before the norm"),
                    HasSubstr("write clip_grad_norm = 0, or in_backward = false")));
  EXPECT_THAT(test::refusal(early, "[plugins.template]\n"),
              AllOf(HasSubstr("in_backward: plugin 'template' needs the gradients of all groups before one"),
                    HasSubstr("leave [plugins.template] out")));
  EXPECT_THAT(test::refusal(early, offload(host + "clip = \"speculative\"\n")),
              HasSubstr("takes updates back, and optimizer.in_backward makes them for good"));
  EXPECT_THAT(test::refusal(early, offload(host + "expert_states = \"lazy\"\n")),
              HasSubstr("knows at the end of a step which experts were chosen"));
  for (const char* states : {"device", "nvme"}) {
    EXPECT_THAT(test::refusal({}, offload(fmt::format("states = \"{}\"\nclip = \"speculative\"\n", states))),
                HasSubstr("write states = \"host\" and expert_states = \"eager\", or clip = \"exact\""));
  }
  EXPECT_THAT(test::refusal({}, offload(host + "clip = \"speculative\"\n") + "[plugins.template]\n"),
              HasSubstr("plugin 'offload' tries the update of 'embedding' in the backward pass, but 'template' must"));
}

// Where all forward passes come first, a validation leads the order that weights are fetched in astray: what is being
// updated then must not be fetched.
TEST(EarlyUpdates, AValidationBetweenStepsReadsWhatTheyHaveWritten) {
  const auto losses = [](const std::string& plugins, const char* device) {
    Config config = experiment(
        {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0", "batch.micro_batch=2", "model.layers=4"},
        "[plugins.pipeline]\nsize = 2\nschedule = \"gpipe\"\n" + plugins);
    config.settings.run.device = device;
    std::vector<double> all;
    run_threads(2, [&](Communicator& communicator) {
      test::TestRank rank(config, communicator);
      for (int step = 0; step < 6; ++step) {
        const double loss = rank.trainer().step(step).loss;
        const double validation = step % 2 == 1 ? rank.trainer().validate() : 0;
        if (communicator.rank() == 0) {
          all.insert(all.end(), {loss, validation});
        }
      }
    });
    return all;
  };
  const std::vector<double> expected = losses("", "cpu");
  EXPECT_EQ(losses(offload(host + "weights = \"host\"\n"), "late"), expected);
  EXPECT_EQ(losses(offload(all_on_disk), "late"), expected);
}

}  // namespace
}  // namespace orthant::early_updates_test
