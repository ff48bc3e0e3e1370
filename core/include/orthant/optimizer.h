// Optimizer: how gradients change weights. A noun of the catalogue, chosen by `optimizer.name`.
//
// An optimizer says of each parameter which state it keeps beside it, and updates runs of elements of flat buffers. It
// never sees ranks: whatever the layout, the core calls it for the elements that this rank owns, and allocates, shards,
// saves and restores the state by the names that it gives.
//
// Some optimizers need a whole matrix to update any element of it (Muon). They ask for it by Treatment::whole, and the
// core then makes three calls: `prepare` for the elements that a rank owns, `transform` for the whole parameter, which
// the core gathers from the ranks that hold parts of it, and `update` for the elements again.
//
// Updates of elements whose gradient is zero, such as an expert's that no token chose, may be put off and made up for
// later, many steps in one pass. An optimizer that can do this says so by Treatment::replays, and has `replay`.
//
// Some need sums over rows, columns or all of a parameter (Adafactor, LAMB). They ask for them by Treatment::measures,
// and may keep states of one number for each row, each column or the whole parameter. The core then makes, in each
// round of measures, two calls: `measure` for the elements that a rank owns, and `fold`, with what the measures of all
// ranks have come to, for such states. `update` for the elements comes last. Only what is summed travels.
//
// Ownership: the catalogue shares one object with all ranks of a process.
// Thread safety: methods are const, and safe to call at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/optimizer.h>
#include <orthant/group.h>
#include <orthant/keys.h>
#include <orthant/ops.h>
#include <orthant/param.h>
#include <orthant/param_state.h>
#include <orthant/state_code.h>

namespace orthant {

struct OptimizerSettings;

// State of one number for each element of a parameter, or each row, each column, all of it; zero before the first step.
struct OptimizerState {
  // Letters, digits, '_': a checkpoint has it as optimizer/NAME/PARAMETER. Not "ema" (weight_average.h).
  std::string name;
  DType dtype = DType::f32;  // or bf16, f64
  // How it may be stored where optimizer.state_dtype = "8bit"; with a code, dtype is f32. Updates meet f32 all the
  // same.
  StateCode code = StateCode::none;
  // What has a number: of the global parameter. Other than elements only with Treatment::measures and without a code;
  // rows and columns only of a parameter with 2 dimensions. An expert's matrix is a parameter of its own.
  StateOver over = StateOver::elements;
  bool operator==(const OptimizerState&) const = default;
};

// One f32 number for each element, which Optimizer::measure writes, and what is made of them over each row, each column
// and the whole of the global parameter, whichever ranks hold it: their sum, taken in f64, or the largest.
struct Measure {
  bool rows = false, columns = false, parameter = false;  // one or more; rows, columns: with 2 dimensions
  ReduceOp how = ReduceOp::sum;                           // or max
  int round = 0;                                          // 0, 1, ...: later ones see what earlier ones came to
  bool operator==(const Measure&) const = default;
};

// What a measure came to, f32. Undefined: not asked for, or of a round that is yet to come.
struct Measured {
  Tensor rows = {}, columns = {};  // [r], [c]: of the slice's rows and columns
  Tensor parameter = {};           // [1]
};

// How an optimizer treats one parameter.
struct Treatment {
  std::vector<OptimizerState> states;  // different names; of one name, all parameters' have one dtype
  bool whole = false;                  // see `prepare` and `transform`
  int method = 0;                      // the optimizer's own number: UpdateStep::method of the calls for this parameter
  bool replays = false;                // see `replay`; not with `whole`
  std::vector<Measure> measures = {};  // see `measure`; not with `whole` or `replays`
  bool operator==(const Treatment&) const = default;
};

// Elements that follow each other in the buffers of one group: of one parameter, or of neighbours that are treated
// alike, and have one rate and one decay.
//
// With Treatment::measures: r rows of c columns of one parameter (c = 1 where it has 1 dimension). What is [n] below is
// [r, c] then; a state over rows is [r], over columns [c], over the parameter [1].
struct UpdateSlice {
  Tensor master;              // f32 [n]: the weights
  Tensor weight;              // compute dtype [n]: receives the new master; in fp32 it is master itself, and so it is
                              // where bf16 weights have no master (f32: the core rounds it)
  Tensor grad;                // f32 [n]: the sum over all ranks
  std::vector<Tensor> state;  // [n] each, in the order of Treatment::states
  Tensor whole;               // f32 [n]: these elements of what `transform` made, to be changed at will; undefined
                              // without Treatment::whole
  std::vector<Measured> measured = {};  // in the order of Treatment::measures
};

struct UpdateStep {
  const OptimizerSettings& settings;
  std::int64_t step = 0;    // from 0
  double lr = 0;            // after warm-up and schedule, times ParamSpec::lr_scale
  double weight_decay = 0;  // settings.weight_decay for matrices; 0 for norms and biases (ParamSpec::decay)
  int method = 0;           // Treatment::method
  Tensor factor;            // f32 [1]: gradients are multiplied by it (clipping); NaN where the step is not finite
  Tensor finite;            // f32 [1]: 1; NaN where the step is not finite
  Shape shape = {};         // with Treatment::measures: of the global parameter
};

class Optimizer {
 public:
  static constexpr const char* noun = "optimizer";
  virtual ~Optimizer() = default;

  // The keys that it reads beside those that every kind has (keys.h). By default none.
  virtual std::vector<KindKey> keys() const { return {}; }
  // Refuses settings that make no sense for it. Errors: SettingError; lines after the first say what to do.
  virtual void check(const OptimizerSettings&) const {}

  // A pure function: every rank asks for every parameter, also for those that it does not hold.
  virtual Treatment treatment(const ParamSpec& param, const OptimizerSettings& settings) const = 0;

  // Only with Treatment::whole; slice.whole is undefined. Writes all of out f32 [n]: what `transform` needs of these
  // elements, such as their momentum. The state may be changed here, but nothing may where step.factor is NaN (what is
  // in `out` does not matter then).
  virtual void prepare(const Tensor& out, const UpdateSlice& slice, const UpdateStep& step, Stream& s) const;
  // Only with Treatment::whole. Replaces in place what `prepare` wrote for the elements of one parameter, f32 [rows,
  // columns] or f32 [n], by what `update` shall get of it. Each rank that owns elements of the parameter makes this
  // call on the same numbers, and sees no others. An expert's matrix is a parameter of its own.
  virtual void transform(const Tensor& whole, const UpdateStep& step, Stream& s) const;
  // Only with Treatment::measures, once in each round for each element that a rank owns. Writes all of out[i], f32
  // [r, c], for the measures of this round in their order. States of elements may be changed here, but nothing may
  // where step.factor is NaN (what is in `out` does not matter then); nor may other states, master or weight.
  virtual void measure(std::span<const Tensor> out, const UpdateSlice& slice, const UpdateStep& step, int round,
                       Stream& s) const;
  // Only with Treatment::measures, behind each of its rounds: changes the states that are not of elements. They are of
  // all rows and columns that this rank holds, and so is slice.measured; all else of the slice is undefined. Nothing
  // may change where step.factor is NaN. By default nothing does.
  // REQUIRES: what becomes of a row's number depends on numbers of this row and of the parameter alone; likewise of a
  // column's, and of the parameter's.
  virtual void fold(const UpdateSlice& slice, const UpdateStep& step, int round, Stream& s) const;
  // One step of the elements: changes master and states of elements, and writes weight. Nothing changes where
  // step.factor is NaN. REQUIRES: each element's result depends on the slice's element alone (and on `whole`, and on
  // numbers of its row, its column and the parameter), not on where slices begin.
  virtual void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const = 0;
  // Only with Treatment::replays. The updates that these elements have missed, each with a gradient of zeros: leaves
  // the same bits as `update` with grad = +0 and factor = 1 for each of `steps`, in order. The list holds only steps
  // that were finite, as the others change nothing; numbers and rates need not follow each other without gaps, and all
  // have one method. slice.grad and slice.whole are undefined, as are factor and finite of the steps. Without a step
  // nothing changes. An element may be replayed in several calls, cut between steps at will.
  // REQUIRES: what `update` does with a gradient of zeros does not depend on factor, as long as that is finite.
  virtual void replay(const UpdateSlice& slice, std::span<const UpdateStep> steps, Stream& s) const;
};

}  // namespace orthant
