// Every schedule for many numbers of stages, chunks and micro-batches: its programs fit each other, its bubble and its
// micro-batches in flight are the papers'.
#include "plugins/pipeline/schedules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/schedule_check.h"

namespace orthant::schedules_test {
namespace {

constexpr int most_stages = 8, most_micro_batches = 16, most_chunks = 4;

Programs programs(int stages, int chunks, int micro_batches, const auto& passes) {
  Programs all{stages, chunks, micro_batches, {}};
  for (int stage = 0; stage < stages; ++stage) {
    all.of_stage.push_back(pipeline::with_messages(passes(stage), stage, stages, chunks));
  }
  return all;
}
Programs gpipe(int p, int m) {
  return programs(p, 1, m, [&](int stage) { return pipeline::gpipe(stage, p, m); });
}
Programs one_forward_one_backward(int p, int m) {
  return programs(p, 1, m, [&](int stage) { return pipeline::one_forward_one_backward(stage, p, m); });
}
Programs interleaved(int p, int v, int m) {
  return programs(p, v, m, [&](int stage) { return pipeline::interleaved(stage, p, v, m); });
}

void expect_bubble(const Programs& all, double bubble) {
  EXPECT_NO_THROW(check_programs(all));
  for (int backward_slots : {1, 2}) {
    EXPECT_NEAR(timeline_of(all, 1, backward_slots).bubble(), bubble, 1e-12)
        << all.stages << " stages, " << all.chunks << " chunks, " << all.micro_batches << " micro-batches, backward of "
        << backward_slots;
  }
}

TEST(Schedules, GPipe) {
  for (int p = 1; p <= most_stages; ++p) {
    for (int m = 1; m <= most_micro_batches; ++m) {
      const Programs all = gpipe(p, m);
      expect_bubble(all, static_cast<double>(p - 1) / m);
      EXPECT_EQ(timeline_of(all, 1, 2).peak, std::vector<int>(p, m));
    }
  }
}

TEST(Schedules, OneForwardOneBackward) {
  for (int p = 1; p <= most_stages; ++p) {
    for (int m = 1; m <= most_micro_batches; ++m) {
      const Programs all = one_forward_one_backward(p, m);
      expect_bubble(all, static_cast<double>(p - 1) / m);
      const std::vector<int> peak = timeline_of(all, 1, 2).peak;
      for (int stage = 0; stage < p; ++stage) {
        EXPECT_EQ(peak[stage], std::min(p - stage, m)) << p << " stages, stage " << stage;
      }
    }
  }
}

TEST(Schedules, Interleaved) {
  for (int p = 1; p <= most_stages; ++p) {
    for (int v = 1; v <= most_chunks; ++v) {
      for (int m = p; m <= most_micro_batches; m += p) {
        const Programs all = interleaved(p, v, m);
        expect_bubble(all, static_cast<double>(p - 1) / (v * m));
        // Pieces are a v-th of a stage: at stage 0 the memory of p (1 + (p - 1) / (p v)) whole ones.
        const std::vector<int> peak = timeline_of(all, 1, 2).peak;
        EXPECT_LE(peak[0], p * v + p - 1);
        EXPECT_EQ(peak[0], std::min(v == 1 ? 2 * p - 1 : p * v + p - 1, m * v));
      }
    }
  }
}

// 4 stages, 8 micro-batches: the last stage turns each forward into its backward at once, the first one is three ahead.
TEST(Schedules, OneForwardOneBackwardWrittenOut) {
  const auto text = [](const std::vector<Instr>& passes) {
    std::string line;
    for (const Instr& pass : passes) {
      line += fmt::format("{}{} ", pass.op == Op::forward ? 'F' : 'B', pass.micro_batch);
    }
    return line;
  };
  EXPECT_EQ(text(pipeline::one_forward_one_backward(0, 4, 5)), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 ");
  EXPECT_EQ(text(pipeline::one_forward_one_backward(2, 4, 5)), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 ");
  EXPECT_EQ(text(pipeline::one_forward_one_backward(3, 4, 5)), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 ");
}

// The figure of the paper (Narayanan et al. 2021, figure 4): the first device's warm-up and what follows.
TEST(Schedules, InterleavedWrittenOut) {
  const std::vector<Instr> passes = pipeline::interleaved(0, 4, 2, 8);
  std::string line;
  for (std::size_t i = 0; i < 16; ++i) {
    line += fmt::format("{}{}{} ", passes[i].op == Op::forward ? 'F' : 'B', passes[i].micro_batch + 1,
                        passes[i].chunk == 0 ? "" : "'");
  }
  EXPECT_EQ(line, "F1 F2 F3 F4 F1' F2' F3' F4' F5 F6 F7 B1' F8 B2' F5' B3' ");
}

TEST(Schedules, MessagesAreSentAndReceivedByNeighboursOnly) {
  const std::vector<Instr> first = pipeline::with_messages(pipeline::one_forward_one_backward(0, 2, 1), 0, 2, 1);
  EXPECT_EQ(first, (std::vector<Instr>{{Op::load, 0, 0},
                                       {Op::forward, 0, 0},
                                       {Op::send_x, 0, 0},
                                       {Op::recv_dx, 0, 0},
                                       {Op::backward, 0, 0},
                                       {Op::finish_grads, 0, 0}}));
  for (const Instr& instr : pipeline::with_messages(pipeline::interleaved(0, 1, 3, 2), 0, 1, 3)) {
    EXPECT_TRUE(instr.op != Op::send_x && instr.op != Op::recv_x && instr.op != Op::send_dx && instr.op != Op::recv_dx);
  }
}

// Validation takes any number of passes over the same stages.
TEST(Schedules, ForwardPassesFitEachOther) {
  for (int p = 1; p <= most_stages; ++p) {
    for (int v = 1; v <= most_chunks; ++v) {
      for (int m = 1; m <= most_micro_batches; ++m) {
        // Completed by all backwards in the order of GPipe.
        Programs all{p, v, m, {}};
        for (int stage = 0; stage < p; ++stage) {
          std::vector<Instr> program = forward_program(stage, p, v, m);
          for (int chunk = v - 1; chunk >= 0; --chunk) {
            for (int i = 0; i < m; ++i) {
              const int piece = chunk * p + stage;
              if (p > 1 && piece < p * v - 1) {
                program.push_back({Op::recv_dx, chunk, i});
              }
              program.push_back({Op::backward, chunk, i});
              if (p > 1 && piece > 0) {
                program.push_back({Op::send_dx, chunk, i});
              }
            }
          }
          program.push_back({Op::finish_grads, 0, 0});
          all.of_stage.push_back(program);
        }
        EXPECT_NO_THROW(check_programs(all)) << p << " stages, " << v << " chunks, " << m << " micro-batches";
      }
    }
  }
}

}  // namespace
}  // namespace orthant::schedules_test
