// Objective: what the model learns from its logits. A noun of the catalogue: `train.objective` names one.
//
// The core makes the logits, chunk by chunk and in any layout, lays out the f64 sums of an objective and sums them over
// ranks once a step. An objective turns logits into a loss and its gradient, and says what becomes of the sums. It
// knows no ranks. Its methods, in the order of a step:
//
//   count    integers of each micro-batch on the host; the core sums them over the global batch
//   upload   tensors of its own, beside those of every batch
//   run      the loss and the gradient of the logits of one micro-batch, on the stage of the head
//   report   the step's loss, and named figures, from the sums over all ranks
//
//   class Mine final : public Objective { ... };
//   catalogue.add<Objective>("mine", "One sentence.", std::make_shared<Mine>());   // in Plugin::add_to
//
// Thread safety: an Objective is shared by all ranks of a process; its methods are const and safe to call at the same
// time. It keeps nothing from call to call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <orthant/abi/objective.h>
#include <orthant/host_batch.h>
#include <orthant/keys.h>
#include <orthant/plan.h>
#include <orthant/step_context.h>

namespace orthant {

struct Settings;

// The logits of the T tokens of a micro-batch that this rank has in the head. A rank has V_r columns of the vocabulary,
// from first_column() on. Logits exist for one chunk of rows at a time: `run` asks for rows [begin, begin + rows) with
// rows <= chunk(), in order, as often as it needs them.
class OutputRows {
 public:
  virtual ~OutputRows() = default;
  virtual std::int64_t tokens() const = 0;  // T
  virtual std::int64_t chunk() const = 0;
  virtual std::int64_t first_column() const = 0;
  // f32 [rows, V_r], in memory that is the caller's.
  virtual Tensor logits(std::int64_t begin, std::int64_t rows) = 0;
  // loss f32 [rows] = -log p(label) over the whole vocabulary; logits f32 [rows, V_r] become their gradient, scale *
  // (softmax - onehot). A label i32 [rows] below 0 gives 0 in both. Any logits will do, those of a teacher too.
  virtual void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) = 0;
  // In place: the sum over the ranks that have the other columns of these tokens.
  virtual void sum_over_columns(const Tensor& t) = 0;
  // In place: the sum over the ranks that have the other tokens of these sequences. REQUIRES:
  // Objective::over_sequences.
  virtual void sum_over_sequences(const Tensor& t) = 0;
  // dlogits f32 [rows, V_r]: the gradient of the rows from `begin` on; it may be overwritten. REQUIRES: in training
  // each row once, in order from 0. Outside of training nothing happens.
  virtual void learn(std::int64_t begin, const Tensor& dlogits) = 0;
};

// The logits of a model that is only read, on the same tokens.
class TeacherLogits {
 public:
  virtual ~TeacherLogits() = default;
  // A micro-batch (StepContext::micro_batch) is between begin and end while it is worked on.
  virtual void begin(int micro_batch) = 0;
  // f32 [rows, V_r] of the tokens [begin, begin + rows), as OutputRows::logits. The caller may write there.
  virtual Tensor logits(std::int64_t begin, std::int64_t rows) = 0;
  virtual void end() = 0;
};

// Which model an objective wants to read beside the one that trains.
struct ReferenceModel {
  std::string folder;   // a run's or a checkpoint's; empty: there is none
  std::string setting;  // that names it: "distil.teacher"
  std::string key;      // the same for messages: "[distil] teacher"
  std::string another;  // the setting to name another one by
  // false: it teaches in training alone. true: what is measured is compared with it too.
  bool measures = false;
};

// What `upload` makes of a micro-batch, to be derived from.
struct ObjectiveBatch {
  virtual ~ObjectiveBatch() = default;
};

// Beside the logits.
struct ObjectiveInput {
  const ObjectiveBatch* own = nullptr;   // of `upload`
  std::span<const std::int64_t> counts;  // of the global batch; empty outside of training
  Tensor sums;                           // f64 [sums().size()], to be added to
  TeacherLogits* teacher = nullptr;      // of `reference`; null where it is not read
  int depth = 0;                         // of multi-token prediction, from 0
};

struct ObjectiveReport {
  double loss = 0;                             // of what the loss is counted in: nats per token
  std::map<std::string, double> figures = {};  // for metrics.jsonl, under these names
  std::string failure = {};                    // why the step must end the run; empty: it need not
};

class Objective {
 public:
  static constexpr const char* noun = "objective";
  virtual ~Objective() = default;

  // --- what the configuration says of it
  // The keys that it reads beside those that every kind has (keys.h). By default none.
  virtual std::vector<KindKey> keys() const { return {}; }
  // Whether the settings ask for it where train.objective names none.
  virtual bool implied(const Settings& settings) const;
  virtual std::vector<Refusal> refusals(const Settings& settings) const;
  virtual ReferenceModel reference(const Settings& settings) const;
  // What the loss is measured in: "nats per token" where what is measured without training is the mean of -log p over
  // the tokens that count, so that it can be told in bits per byte. By default nothing: it compares with itself alone.
  virtual std::string unit(const Settings& settings) const;
  // Whether `run` sums over the tokens of a sequence, some of which other ranks may have.
  virtual bool over_sequences(const Settings& settings) const;

  // --- names, for people; their number is what counts
  // f64 sums over the step. The first is the loss: a step in which it is not finite is not applied. By default one.
  virtual std::vector<std::string> sums(const Settings& settings) const;
  // Integers. The first is what the loss is a mean over; StepContext::loss_scale is 1 / its sum over the global batch.
  // By default one, of tokens that have a label.
  virtual std::vector<std::string> counts(const Settings& settings) const;

  // --- the step
  // Adds to `counts` what a micro-batch has. whole: its sequences. held: the tokens of them that this rank loads; every
  // token is held by one rank of those that `counts` are summed over.
  virtual void count(const HostBatch& whole, const HostBatch& held, const Plan& plan,
                     std::span<std::int64_t> counts) const;
  // By default nothing. The result lives until the micro-batch has passed the stage.
  virtual std::shared_ptr<const ObjectiveBatch> upload(const HostBatch& whole, const Plan& plan, Stream& s) const;
  // Adds this rank's tokens to in.sums, and in training hands the gradient of all rows to OutputRows::learn, times
  // StepContext::loss_scale: from there on gradients are only summed. Also called where a loss is only measured
  // (ctx.training false), and in a dry run. Ranks that have the same tokens in other columns make the same calls, and
  // all of them the same sums.
  virtual void run(const ObjectiveInput& in, OutputRows& rows, const StepContext& ctx) const = 0;
  // sums, counts: over the global batch, or over all that is measured. training: of a step. By default sums[0] /
  // counts[0]. A figure is finite where the loss is.
  virtual ObjectiveReport report(const Settings& settings, std::span<const double> sums,
                                 std::span<const std::int64_t> counts, bool training) const;
  // What the line on a terminal says of the figures, as "margin 0.12". By default nothing.
  virtual std::string told(const std::map<std::string, double>& figures, bool training) const;
};

// The head's: what train.objective names, or the settings imply; else "cross_entropy". Errors: ConfigError listing the
// objectives that there are.
std::string objective_name(const Settings& settings);
const Objective& objective_of(const Settings& settings);

// The tokens of whole sequences that this rank has in a region.
HostBatch held_rows(const HostBatch& whole, const Plan& plan, Region region = Region::embedding, int space = 0);

}  // namespace orthant
