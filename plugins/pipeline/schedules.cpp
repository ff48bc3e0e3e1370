#include "schedules.h"

#include <algorithm>
#include <set>

namespace orthant::pipeline {

std::vector<Instr> gpipe(int, int, int micro_batches) {
  std::vector<Instr> passes;
  for (Op op : {Op::forward, Op::backward}) {
    for (int m = 0; m < micro_batches; ++m) {
      passes.push_back({op, 0, m});
    }
  }
  return passes;
}

namespace {

// Numbers of forwards in front of the first backward, then forward and backward in turn; pass(op, i) is the i-th of
// its kind.
template <class Pass>
std::vector<Instr> in_turn(int ahead, int count, Pass pass) {
  std::vector<Instr> passes;
  for (int i = 0; i < ahead; ++i) {
    passes.push_back(pass(Op::forward, i));
  }
  for (int i = 0; i < count; ++i) {
    if (ahead + i < count) {
      passes.push_back(pass(Op::forward, ahead + i));
    }
    passes.push_back(pass(Op::backward, i));
  }
  return passes;
}

}  // namespace

std::vector<Instr> one_forward_one_backward(int stage, int stages, int micro_batches) {
  const int ahead = std::min(stages - 1 - stage, micro_batches);
  return in_turn(ahead, micro_batches, [](Op op, int i) { return Instr{op, 0, i}; });
}

std::vector<Instr> interleaved(int stage, int stages, int chunks, int micro_batches) {
  const int count = chunks * micro_batches;
  // The first backward is that of the last chunk: before it come the first round's forwards through all chunks but the
  // last, and two more for every stage behind this one, as its results travel there and back.
  const int ahead = std::min(2 * (stages - 1 - stage) + (chunks - 1) * stages, count);
  return in_turn(ahead, count, [&](Op op, int i) {
    const int round = stages * chunks, chunk = i % round / stages;
    return Instr{op, op == Op::forward ? chunk : chunks - 1 - chunk, i / round * stages + i % stages};
  });
}

std::vector<Instr> with_messages(const std::vector<Instr>& passes, int stage, int stages, int chunks) {
  std::vector<Instr> program;
  std::set<int> loaded;
  for (const Instr& pass : passes) {
    const int m = pass.micro_batch, piece = pass.chunk * stages + stage;
    const bool before = stages > 1 && piece > 0, behind = stages > 1 && piece < stages * chunks - 1;
    const bool forward = pass.op == Op::forward;
    if (loaded.insert(m).second) {
      program.push_back({Op::load, 0, m});
    }
    if (forward ? before : behind) {
      program.push_back({forward ? Op::recv_x : Op::recv_dx, pass.chunk, m});
    }
    program.push_back(pass);
    if (forward ? behind : before) {
      program.push_back({forward ? Op::send_x : Op::send_dx, pass.chunk, m});
    }
  }
  program.push_back({Op::finish_grads, 0, 0});
  return program;
}

}  // namespace orthant::pipeline
