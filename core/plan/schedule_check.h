// The programs of all stages together (Schedule::steps): whether they fit each other, and how long they take, found
// without any rank. Pure functions.
#pragma once

#include <vector>

#include <orthant/seams.h>

namespace orthant {

struct Programs {
  int stages = 1, chunks = 1, micro_batches = 1;
  std::vector<std::vector<Instr>> of_stage;
};

// chunks: of each stage. Errors: those of the schedule.
Programs programs_of(const Schedule& schedule, int stages, int chunks, int micro_batches);

// Plays the programs of one step: each micro-batch is loaded before it is used; every piece runs forward and then
// backward once for every micro-batch, with what it needs there; a message arrives where it was sent for, in the order
// of sending; nothing waits for ever although receives block (sends do not); no message is left; finish_grads
// comes once, last. Errors: Error naming stage and instruction.
void check_programs(const Programs& programs);

// The forward passes of one stage for any number of micro-batches, without backward: in rounds of one micro-batch a
// stage, chunk after chunk.
std::vector<Instr> forward_program(int stage, int stages, int chunks, int micro_batches);

// Who works when, if sending takes no time.
struct TimeSlot {
  Instr instr;  // forward or backward
  int begin = 0, end = 0;
};
struct Timeline {
  std::vector<std::vector<TimeSlot>> of_stage;  // in order
  int length = 0;
  std::vector<int> peak;  // of each stage: the most (chunk, micro-batch) pairs between forward and backward
  double bubble() const;  // idle / busy, over all stages
};
// REQUIRES: programs that check_programs accepts; both lengths positive.
Timeline timeline_of(const Programs& programs, int forward_slots, int backward_slots);

const char* name_of(Op op);

}  // namespace orthant
