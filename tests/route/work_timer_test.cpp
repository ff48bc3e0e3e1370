// What the timer of experts times is what training does: the operations by name.
#include <gtest/gtest.h>

#include "apps/route/step_time.h"
#include "bench/command/profiling_stream.h"
#include "core/modules/make_device.h"
#include "tests/support/experiment.h"

namespace orthant::route_test {
namespace {

// Calls by name. What a device does at once, this stream sees as the operations that it stands for.
std::map<std::string, std::int64_t> calls_of(const Settings& settings) {
  auto device = make_device("cpu", 1);
  auto stream = std::make_unique<ProfilingStream>(device->make_main_stream());
  ProfilingStream& profile = *stream;
  WorkTimer timer(settings, std::move(device), std::move(stream));
  EXPECT_GT(timer.seconds({.rows = {5, 0, 7}, .tokens = 8, .top_k = 2}), 0);
  EXPECT_GT(timer.seconds({.rows = {5, 9}}), 0);
  std::map<std::string, std::int64_t> calls;
  for (const auto& [name, entry] : profile.entries()) {
    calls[name] = entry.calls;
  }
  return calls;
}

TEST(WorkTimer, TimesTheProductsOfBiases) {
  for (const char* dtype : {"run.dtype=\"fp32\"", "run.dtype=\"bf16\""}) {
    for (const bool biases : {false, true}) {
      auto calls =
          calls_of(test::experiment({dtype, biases ? "moe.expert_bias=true" : "moe.expert_bias=false"}).settings);
      const std::int64_t passes = calls["weighted_activation_backward"];
      EXPECT_GT(passes, 0);
      EXPECT_EQ(calls["activation"], passes) << "forward passes";
      EXPECT_GT(calls["combine"], 0) << "of tokens of the rank";
      EXPECT_LT(calls["combine"], passes) << "rows from other ranks are packed where they come from";
      EXPECT_EQ(calls["grouped_gemm"], (biases ? 7 : 4) * passes) << "two products there and two back, and three more";
      EXPECT_EQ(calls["grouped_gemm_tn"], (biases ? 4 : 2) * passes) << "a gradient of each";
    }
  }
}

}  // namespace
}  // namespace orthant::route_test
