// Stepwise: how a kind of model answers token by token, where answers have a source beside them. A noun of the
// catalogue, under the name of the ModelKind; generation and evaluation ask for it. What depends on a source alone is
// computed once and kept.
//
// Thread safety: a Stepwise is shared by all ranks of a process, and its methods are const. A StepwiseModel belongs to
// one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <orthant/abi/stepwise.h>
#include <orthant/model.h>
#include <orthant/source.h>

namespace orthant {

// Rows [row, row + rows) of a pass: the next tokens of a sequence, from `position` on.
struct StepRows {
  int sequence = 0;
  std::int64_t row = 0, rows = 0, position = 0;
};

class StepwiseModel {
 public:
  virtual ~StepwiseModel() = default;
  // source: one sequence, of whose batch the further spaces are read. REQUIRES: the sequence is new; not in training.
  virtual void begin(int sequence, const StepContext& source) = 0;
  // The batch has rows of sequences that have begun, end to end, and padding behind them. Returns what enters the head,
  // [T, d]: each row as training's forward pass on the whole sequence has it, whatever it came with.
  virtual Tensor pass(const StepContext& ctx, std::span<const StepRows> rows) = 0;
  virtual void forget(int sequence) = 0;
};

class Stepwise {
 public:
  static constexpr const char* noun = "stepwise";
  virtual ~Stepwise() = default;
  // The document of an answer to `source` before it has a token: those that it goes on from, one at least, and the
  // source in its space. Errors: ConfigError for a source that the model has no positions for.
  virtual SequenceDocument asked(const Settings& settings, std::vector<std::int32_t> source) const = 0;
  // Tokens that end an answer, beside those of the tokenizer.
  virtual std::vector<std::int32_t> ends(const Settings&) const { return {}; }
  // Parameters and plan outlive it. The weights stay where they are.
  virtual std::unique_ptr<StepwiseModel> make(const Parameters& parameters, Plan& plan) const = 0;
};

}  // namespace orthant
