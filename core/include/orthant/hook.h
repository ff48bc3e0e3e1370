// Hook: an observer of the run. All hooks that loaded plugins add are called, in the order of their tables.
//
// After each step an observer reads the step's report. It may write metrics of its own into metrics.jsonl, and it may
// change what is declared changeable here. Whatever else it would change, it cannot reach.
//
//   class Mine final : public Hook { ... };
//   catalogue.add<Hook>("mine", "One sentence.", std::make_shared<Mine>());   // in Plugin::add_to
//
// The report is the same on every rank of a worker, so an observer that is a function of reports decides alike on all
// of them; one that is not (it asks a clock, or its rank) breaks the run. State that matters goes into numbers():
// checkpoints keep it, and a resumed run goes on as if it had never stopped.
//
// Thread safety: a Hook is shared by all ranks of a process; its methods are const. An Observer belongs to one rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <orthant/abi/hook.h>

namespace orthant {

struct Settings;

// What a routed layer counted over the micro-batches of a step.
struct LayerCounters {
  int block = 0;                         // Link::block (orthant/model.h)
  std::int64_t tokens = 0;               // of the global batch that it routes: those of its token space, no padding
  std::vector<std::int64_t> load;        // [E] choices before capacity
  std::vector<std::int64_t> kept;        // [E] choices that an expert computed
  std::int64_t zero_choices = 0;         // choices of zero-computation experts, in no other list
  std::int64_t choices = 0;              // that the gate made, those included; GShard: those that chance left out too
  std::int64_t dropped_by_capacity = 0;  // choices that found their expert full
  std::int64_t dropped_by_chance = 0;    // GShard second choices not kept
};

// What is measured of a routed layer on logged steps (run.routing_metrics), over the tokens of the global batch that
// are not padding. Nothing: it cannot be said of this gate.
struct LayerRouting {
  int block = 0;                   // as LayerCounters
  double choice_entropy = 0;       // of the experts' shares of the load, over ln E: 1 is balanced
  double probability_entropy = 0;  // mean over tokens of the entropy of the scores over their sum, over ln E
  std::int64_t dead_experts = 0;   // without a choice in this step
  std::optional<double> margin;    // mean over tokens of the least chosen logit - the greatest other one
  double grad_norm_loss = 0;       // of the gradient of the router's weight that comes from the loss,
  double grad_norm_balance = 0;    // from the balance loss,
  double grad_norm_z = 0;          // and from the z loss, with their coefficients
};

// What one training step says of itself. The same on every rank of a worker. Losses are means over the tokens that
// count, of the global batch; a routed layer's counters are sums over all ranks.
struct StepReport {
  std::int64_t step = 0;    // from 0
  double loss = 0;          // nats per token, without aux, z and what a teacher adds; of pairs: nats per pair
  double aux_loss = 0;      // mean over routed layers of E sum f P (1 when balanced), before its coefficient
  double z_loss = 0;        // mean over routed layers, before its coefficient
  double grad_norm = 0;     // before clipping
  double lr = 0;            // of this step
  std::int64_t tokens = 0;  // of this step that are not padding
  std::vector<LayerCounters> layers;
  std::map<std::string, double> metrics = {};  // of keepers and hooks: "NAME.KEY"
  // Figures of the objectives beside the loss (orthant/objective.h): "distil_loss" (temperature^2 KL(q_t || p_t), nats
  // per token), "mtp_loss" (the mean over depths, before train.mtp_weight), "rewards/chosen"...
  std::map<std::string, double> figures = {};
  std::vector<LayerRouting> routing = {};    // of `layers`, where this step was measured; else empty
  bool passed_over = false;                  // not finite, and nothing was updated (run.skip_not_finite)
  double drop_rate() const;                  // choices that no expert computed / choices
  double expert_load_max_over_mean() const;  // the worst layer's
};

// What an observer may change. It is kept from step to step, saved and restored with the run.
struct Changes {
  double lr_factor = 1;  // the learning rate of the schedule is multiplied by it, from the next step on; above 0
  // moe.capacity_factor is multiplied by it, from the next step's forward pass on; above 0, at most 1: memory is
  // planned for the configured factor. Validation, generation and `orthant eval` keep the configured one. A run without
  // a capacity (no experts, or capacity_factor = 0) refuses any value but 1.
  double capacity_share = 1;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Once a step, on every rank, when the step's report has been read. Not for a step that is refused, or passed over
  // (run.skip_not_finite), because it is not finite. `metrics`: empty; what is put there stands as NAME.KEY in the line
  // of this step, where one is logged.
  virtual void after_step(const StepReport& report, Changes& changes, std::map<std::string, double>& metrics) = 0;
  // What it remembers, by name.
  virtual std::map<std::string, double> numbers() const { return {}; }
  // Before the first step of a resumed run, with what numbers() gave when the checkpoint was written. A checkpoint of a
  // run without this hook has none, and this is not called.
  virtual void restore(const std::map<std::string, double>& /*numbers*/) {}
};

class Hook {
 public:
  static constexpr const char* noun = "hook";
  virtual ~Hook() = default;
  virtual std::unique_ptr<Observer> make(const Settings& settings) const = 0;
};

}  // namespace orthant
