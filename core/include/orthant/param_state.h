// ParamState, PluginState: what is kept of a group from step to step beside its weights, by the optimizer and by
// plugins, and how a checkpoint holds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <orthant/abi/plan.h>
#include <orthant/state_code.h>
#include <orthant/tensor.h>

namespace orthant {

// What has a number of an optimizer's state: each element of a parameter, each row, each column, or all of it.
enum class StateOver { elements, rows, columns, parameter };

// State of one name that the optimizer keeps for the elements of a group which this rank owns (orthant/optimizer.h), or
// for what else `over` says.
struct ParamState {
  // Owned elements [begin, begin + count), counted from ParamGroup::owned_begin on, lie from `at` on in `values`.
  struct Run {
    std::int64_t begin = 0, count = 0, at = 0;
  };
  // Not over elements: the numbers of this rank's slice of params[param], all of its rows, say, lie from `at` on.
  struct Numbers {
    std::size_t param = 0;
    std::int64_t count = 0, at = 0;
  };
  std::string name;          // "moment1"; those of a group that are stored in 8 bits and those that are not stand apart
  DType dtype = DType::f32;  // of the numbers
  StateCode code = StateCode::none;  // how they are stored
  // Owned where every parameter of the group has it, else those elements alone; not over elements: all `numbers`.
  std::int64_t elements = 0;
  // [elements]. With a code u8 [elements + elements / state_block]: all codes, then the blocks' exponents.
  Tensor values;
  std::vector<Run> runs = {};  // in order; none where it is not over elements
  StateOver over = StateOver::elements;
  std::vector<Numbers> numbers = {};  // none where it is over elements
  std::int64_t bytes() const {
    return code == StateCode::none ? elements * static_cast<std::int64_t>(size_of(dtype))
                                   : elements + elements / state_block;
  }
  // Where the state of owned elements [begin, begin + count) begins in `values`; -1 if they have none. REQUIRES: one
  // run holds all of them.
  std::int64_t place(std::int64_t begin, std::int64_t count) const {
    for (const Run& run : runs) {
      if (begin >= run.begin && begin + count <= run.begin + run.count) {
        return run.at + begin - run.begin;
      }
    }
    return -1;
  }
  // The state of these elements; undefined if they have none. REQUIRES: it has no code.
  Tensor slice(std::int64_t begin, std::int64_t count) const {
    const std::int64_t at = place(begin, count);
    return at < 0 ? Tensor() : values.slice(at, {count});
  }
  // Elements [at, at + count) of `values`, whole blocks. REQUIRES: it has a code.
  Tensor codes(std::int64_t at, std::int64_t count) const { return values.slice(at, {count}); }
  Tensor exponents(std::int64_t at, std::int64_t count) const {
    return values.slice(elements + at / state_block, {count / state_block});
  }
};

// How the ranks of a group's sum hold a tensor that is remembered from step to step, and what becomes of it in another
// layout.
//   owned:    f32 [owned_elements], as the optimizer's moments: each rank has the part of its range. Any layout loads
//             it. Replicas hold the same bits.
//   summed:   f32 [padded]: each rank has one of its own, and they add up, as what compression left over does. In the
//             same layout each rank gets its own back; in another one the first gets the sum and the others zeros.
//   per_rank: any dtype, the shape of its spec: of the rank alone. In another layout it is dropped, and that is said.
enum class StateKind { owned, summed, per_rank };

struct StateSpec {
  std::string name;  // "residual"; one of a plugin's own
  StateKind kind = StateKind::owned;
  Shape shape = {};          // per_rank only
  DType dtype = DType::f32;  // per_rank only
};

// A state as a group holds it.
struct PluginState {
  std::string name;  // of the checkpoint: "plugins/PLUGIN/residual"
  StateKind kind = StateKind::owned;
  Tensor tensor;
  // Its values came with the checkpoint that was loaded. False at the start, and where the checkpoint had none: zeros.
  bool restored = false;
  Shape shape = {};          // as StateSpec
  DType dtype = DType::f32;  // as StateSpec
};

}  // namespace orthant
