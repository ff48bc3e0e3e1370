// The program of layered gradient accumulation.
#include <gtest/gtest.h>

#include <set>

#include "plugins/data/layered_schedule.h"

namespace orthant::data_plugin::layered_test {
namespace {

TEST(LayeredSchedule, TakesEveryMicroBatchThroughALayerBeforeTheNext) {
  constexpr int layers = 4, micro_batches = 3;
  const LayeredSchedule schedule(layers);
  EXPECT_EQ(schedule.cut(std::vector<double>(layers, 1.0), 1), (std::vector<int>{0, 1, 2, 3, 4}));
  std::set<std::pair<int, int>> forward, backward;
  std::vector<Op> last;
  for (const Instr& instr : schedule.steps(0, 1, micro_batches)) {
    const std::pair<int, int> place{instr.chunk, instr.micro_batch};
    if (instr.op == Op::forward) {
      EXPECT_EQ(forward.size() / micro_batches, static_cast<std::size_t>(instr.chunk));
      EXPECT_TRUE(forward.insert(place).second);
    } else if (instr.op == Op::backward) {
      EXPECT_EQ(forward.size(), static_cast<std::size_t>(layers * micro_batches));
      EXPECT_EQ(layers - 1 - backward.size() / micro_batches, static_cast<std::size_t>(instr.chunk));
      EXPECT_TRUE(backward.insert(place).second);
    }
    last.push_back(instr.op);
  }
  EXPECT_EQ(backward.size(), static_cast<std::size_t>(layers * micro_batches));
  EXPECT_EQ(last.back(), Op::finish_grads);
}

TEST(LayeredSchedule, IsOfOneStage) {
  const LayeredSchedule schedule(4);
  EXPECT_THROW(schedule.cut(std::vector<double>(4, 1.0), 2), ConfigError);
}

}  // namespace
}  // namespace orthant::data_plugin::layered_test
