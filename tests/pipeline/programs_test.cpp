// The player of programs: it refuses wrong ones, naming stage and instruction, and tells times as worked out by hand.
#include "core/plan/schedule_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/session/session.h"
#include "plugins/pipeline/schedules.h"
#include "tests/support/experiment.h"

namespace orthant::programs_test {
namespace {

using testing::HasSubstr;

// Two stages, two micro-batches, 1F1B.
Programs sound() {
  Programs all{2, 1, 2, {}};
  for (int stage = 0; stage < 2; ++stage) {
    all.of_stage.push_back(pipeline::with_messages(pipeline::one_forward_one_backward(stage, 2, 2), stage, 2, 1));
  }
  return all;
}

std::string refusal(const Programs& programs) {
  try {
    check_programs(programs);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::size_t place_of(const std::vector<Instr>& program, Instr instr) {
  return static_cast<std::size_t>(std::find(program.begin(), program.end(), instr) - program.begin());
}

std::string without(int stage, Instr instr) {
  Programs all = sound();
  std::vector<Instr>& program = all.of_stage[stage];
  program.erase(program.begin() + static_cast<std::ptrdiff_t>(place_of(program, instr)));
  return refusal(all);
}

std::string swapped(int stage, Instr a, Instr b) {
  Programs all = sound();
  std::vector<Instr>& program = all.of_stage[stage];
  std::swap(program[place_of(program, a)], program[place_of(program, b)]);
  return refusal(all);
}

TEST(Programs, WrongOnesAreRefused) {
  EXPECT_EQ(refusal(sound()), "accepted");
  EXPECT_THAT(without(0, {Op::load, 0, 1}),
              HasSubstr("stage 0, forward of chunk 0, micro-batch 1: the micro-batch is not loaded"));
  EXPECT_THAT(without(1, {Op::recv_x, 0, 1}),
              HasSubstr("stage 1, forward of chunk 0, micro-batch 1: its input is not there"));
  EXPECT_THAT(without(0, {Op::send_x, 0, 1}), HasSubstr("waits forever"));
  EXPECT_THAT(without(0, {Op::recv_dx, 0, 0}), HasSubstr("its gradient is not there"));
  EXPECT_THAT(without(0, {Op::recv_dx, 0, 1}), HasSubstr("its gradient is not there"));
  EXPECT_THAT(without(1, {Op::send_dx, 0, 1}), HasSubstr("stage 0, recv_dx of chunk 0, micro-batch 1: waits forever"));
  EXPECT_THAT(without(0, {Op::backward, 0, 1}), HasSubstr("1 backwards"));
  EXPECT_THAT(without(1, {Op::backward, 0, 0}), HasSubstr("what it sends is not there"));
  EXPECT_THAT(without(1, {Op::finish_grads, 0, 0}), HasSubstr("finish_grads is missing"));
  EXPECT_THAT(swapped(1, {Op::forward, 0, 0}, {Op::backward, 0, 0}), HasSubstr("before its forward"));
  EXPECT_THAT(swapped(0, {Op::forward, 0, 0}, {Op::send_x, 0, 0}), HasSubstr("what it sends is not there"));
  EXPECT_THAT(swapped(1, {Op::recv_x, 0, 0}, {Op::recv_x, 0, 1}), HasSubstr("what arrives is for"));
  EXPECT_THAT(swapped(0, {Op::backward, 0, 1}, {Op::finish_grads, 0, 0}), HasSubstr("after finish_grads"));
  // The first stage waits for a gradient before it sends what the second needs.
  EXPECT_THAT(swapped(0, {Op::send_x, 0, 0}, {Op::recv_dx, 0, 0}), HasSubstr("waits forever"));
  Programs twice = sound();
  twice.of_stage[0].insert(twice.of_stage[0].begin() + 1, {Op::forward, 0, 0});
  EXPECT_THAT(refusal(twice), HasSubstr("a second time"));
  Programs beyond = sound();
  beyond.of_stage[0].insert(beyond.of_stage[0].begin(), {Op::forward, 0, 2});
  EXPECT_THAT(refusal(beyond), HasSubstr("there is none"));
  Programs outwards = sound();
  outwards.of_stage[0].insert(outwards.of_stage[0].begin(), {Op::recv_x, 0, 0});
  EXPECT_THAT(refusal(outwards), HasSubstr("it comes from no other stage"));
}

// By hand, backward of two slots:  stage 0:  F0 F1 .  B0 B0 .  B1 B1
//                                  stage 1:  .  F0 B0 B0 F1 B1 B1 .
// Stage 0's B0 begins when stage 1's ends, at 4, and its B1 at 7.
TEST(Programs, TimelineByHand) {
  const Timeline timeline = timeline_of(sound(), 1, 2);
  const auto times = [&](std::size_t stage) {
    std::vector<std::pair<int, int>> found;
    for (const TimeSlot& slot : timeline.of_stage[stage]) {
      found.emplace_back(slot.begin, slot.end);
    }
    return found;
  };
  EXPECT_EQ(times(0), (std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {4, 6}, {7, 9}}));
  EXPECT_EQ(times(1), (std::vector<std::pair<int, int>>{{1, 2}, {2, 4}, {4, 5}, {5, 7}}));
  EXPECT_EQ(timeline.length, 9);
  EXPECT_DOUBLE_EQ(timeline.bubble(), 6.0 / 12.0);
  EXPECT_EQ(timeline.peak, (std::vector<int>{2, 1}));
}

}  // namespace
}  // namespace orthant::programs_test
