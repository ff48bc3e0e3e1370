#include "bench/command/causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "core/trace/late_rank.h"
#include "core/trace/summary.h"

namespace orthant {
namespace {

enum class OperationClass { dense_product, expert_product, attention, routing, optimizer, memory };

OperationClass class_of(std::string_view name) {
  const auto begins = [&](std::initializer_list<std::string_view> with) {
    return std::any_of(with.begin(), with.end(), [&](std::string_view w) { return name.starts_with(w); });
  };
  if (name == "gemm") {
    return OperationClass::dense_product;
  }
  if (is_expert_product(name)) {
    return OperationClass::expert_product;
  }
  if (begins({"attention"})) {
    return OperationClass::attention;
  }
  if (begins({"gate", "dispatch_plan", "part_choices", "keep_seated", "choose_experts", "balance_bias", "pack",
              "combine"})) {
    return OperationClass::routing;
  }
  if (begins({"adamw", "sgd", "descend", "normalize", "clip_factor", "sum_squares", "reduce_matrix", "encode_state",
              "decode_state", "stochastic_cast"})) {
    return OperationClass::optimizer;
  }
  return OperationClass::memory;
}

// Of a rank and step, means.
struct Work {
  double seconds = 0, flops = 0, bytes = 0, rows = 0, calls = 0;
};

struct Totals {
  std::map<OperationClass, Work> work;
  double sent_rows = 0, kept_rows = 0;  // packed, and of them those that hold a choice
};

Totals totals_of(const JoinedTrace& trace) {
  Totals totals;
  double steps = 0;
  for (const RankTrace& rank : trace.ranks) {
    for (const Span& step : rank.lines.front().spans) {
      if (step.kind != SpanKind::step) {
        continue;
      }
      ++steps;
      for (const RankTrace::Line& line : rank.lines) {
        for (const Span& span : beginning_in(line, step.begin, step.end)) {
          if (span.kind != SpanKind::compute) {
            continue;
          }
          Work& work = totals.work[class_of(span.name)];
          work.flops += static_cast<double>(std::max<std::int64_t>(span.facts.flops, 0));
          work.bytes += static_cast<double>(std::max<std::int64_t>(span.facts.bytes, 0));
          work.rows += static_cast<double>(std::max<std::int64_t>(span.facts.rows, 0));
          ++work.calls;
          if (span.facts.useful >= 0) {
            totals.sent_rows += static_cast<double>(span.facts.rows);
            totals.kept_rows += static_cast<double>(span.facts.useful);
          }
        }
      }
    }
  }
  for (auto& [kind, work] : totals.work) {
    for (double* value : {&work.flops, &work.bytes, &work.rows, &work.calls}) {
      *value /= std::max(steps, 1.0);
    }
  }
  return totals;
}

// The mean over ranks of a rank's seconds.
double mean(const TraceSummary& summary, const std::function<double(const RankSummary&)>& value) {
  double sum = 0;
  for (const RankSummary& rank : summary.ranks) {
    sum += value(rank);
  }
  return sum / static_cast<double>(summary.ranks.size());
}

double expert_seconds_of(const RankSummary& rank) {
  double sum = 0;
  for (const auto& [name, seconds] : rank.operations) {
    sum += is_expert_product(name) ? seconds : 0;
  }
  return sum;
}

class Causes {
 public:
  Causes(const JoinedTrace& trace, const StepFloor& floor)
      : floor_(floor), summary_(summarise(trace)), totals_(totals_of(trace)) {
    for (const RankSummary& rank : summary_.ranks) {
      for (const auto& [name, seconds] : rank.operations) {
        totals_.work[class_of(name)].seconds += seconds / static_cast<double>(summary_.ranks.size());
      }
    }
  }

  StepCauses all() {
    found_.step_seconds = mean(summary_, [](const RankSummary& r) { return r.seconds; });
    found_.floor_seconds = at_full_rate(floor_.model_flops);
    products();
    others();
    waits();
    host();
    std::stable_sort(found_.causes.begin(), found_.causes.end(),
                     [](const Cause& a, const Cause& b) { return a.seconds > b.seconds; });
    return std::move(found_);
  }

 private:
  double at_full_rate(double flops) const { return flops / floor_.flops_per_second; }

  void add(const std::string& name, double seconds, const std::string& key, const std::string& detail = "") {
    if (seconds != 0) {
      found_.causes.push_back({name, seconds, key, detail});
    }
  }

  // What products take beyond a large product's rate; and work that the model does not ask for, or is spared.
  void products() {
    const Work& dense = totals_.work[OperationClass::dense_product];
    const Work& experts = totals_.work[OperationClass::expert_product];
    const Work& attention = totals_.work[OperationClass::attention];
    const double padded = totals_.sent_rows > 0 ? experts.flops * (1 - totals_.kept_rows / totals_.sent_rows) : 0;
    add("padding", at_full_rate(padded), "moe.capacity_factor",
        fmt::format("{:.0f} % of the rows that experts compute hold no token",
                    totals_.sent_rows > 0 ? 100 * (1 - totals_.kept_rows / totals_.sent_rows) : 0));
    add_rate("small products of experts", "experts' products", experts, "batch.micro_batch, moe.experts, moe.d_expert");
    add_rate("small dense products", "dense products", dense, "batch.micro_batch, model.d_model");
    add_rate("attention below the rate of a product", "attention", attention, "data.sequence_length");
    const double beyond = dense.flops + experts.flops + attention.flops - padded - floor_.model_flops;
    add(beyond > 0 ? "products that are made again" : "products that are spared: choices dropped", at_full_rate(beyond),
        beyond > 0 ? "memory.recompute" : "moe.capacity_factor");
  }

  // The rate of a large product is each rank's while all make one: where ranks share cores, one that computes while
  // others wait is faster.
  void add_rate(const std::string& slower, const std::string& what, const Work& work, const std::string& key) {
    const double beyond = work.seconds - at_full_rate(work.flops);
    add(beyond < 0 ? what + " on cores that waiting ranks leave" : slower, beyond, beyond < 0 ? "" : key,
        fmt::format("{:.0f} % of the rate of a large product", percent(work)));
  }

  double percent(const Work& work) const {
    return work.seconds > 0 ? 100 * at_full_rate(work.flops) / work.seconds : 0;
  }

  std::string at_copy_rate(const Work& work) const {
    return fmt::format("{:.2f} ms at the rate of a copy", 1e3 * work.bytes / floor_.bytes_per_second);
  }

  void others() {
    const Work& routing = totals_.work[OperationClass::routing];
    add("routing and permutation", routing.seconds, "moe.top_k, moe.experts", at_copy_rate(routing));
    const Work& optimizer = totals_.work[OperationClass::optimizer];
    add("optimizer", optimizer.seconds, "batch.sequences, optimizer.name", at_copy_rate(optimizer));
    const Work& memory = totals_.work[OperationClass::memory];
    add("memory-bound operations", memory.seconds, "run.dtype, model.activation", at_copy_rate(memory));
  }

  void waits() {
    double exchange = 0, sums = 0;
    for (const RankSummary& rank : summary_.ranks) {
      for (const auto& [name, seconds] : rank.collectives) {
        (name.starts_with("all_to_all") ? exchange : sums) += seconds / static_cast<double>(summary_.ranks.size());
      }
    }
    add("exposed exchange", exchange, "[plugins.*] chunks, moe.capacity_factor", "tokens to their experts and back");
    add("exposed collectives", sums, "[plugins.*] size, batch.sequences", "sums, gathers and messages");
    const double waiting = mean(summary_, [](const RankSummary& r) { return r.waiting; });
    // Whoever computes fewer rows waits for who computes most: no more than what its experts are spared.
    double most = 0;
    for (const RankSummary& rank : summary_.ranks) {
      most = std::max(most, expert_seconds_of(rank));
    }
    const double most_rows =
        std::accumulate(summary_.ranks.begin(), summary_.ranks.end(), 0.0,
                        [](double rows, const RankSummary& r) { return std::max(rows, r.expert_rows); });
    const double rows = mean(summary_, [](const RankSummary& r) { return r.expert_rows; });
    const double uneven = rows > 0 && most_rows > 1.05 * rows ? most - mean(summary_, expert_seconds_of) : 0;
    const double by_experts = std::clamp(uneven, 0.0, waiting);
    add("imbalance of experts", by_experts, "moe.aux_loss, moe.router = \"bias\"",
        fmt::format("the busiest rank's experts have {:.2f} times the mean rows", rows > 0 ? most_rows / rows : 0));
    add("ranks that wait for each other", waiting - by_experts, "run.threads, fewer ranks a machine",
        summary_.late_rank ? fmt::format("most for rank {}", *summary_.late_rank) : "");
    add("pipeline bubbles", mean(summary_, [](const RankSummary& r) { return r.bubble; }),
        "batch.micro_batch, [plugins.*] schedule");
  }

  // What no operation covers.
  void host() {
    double transfers = 0, batch = 0, rest = 0;
    for (const RankSummary& rank : summary_.ranks) {
      for (const auto& [name, seconds] : rank.others) {
        (name == "transfers" ? transfers
         : name == "batch"   ? batch
                             : rest) += seconds / static_cast<double>(summary_.ranks.size());
      }
    }
    double calls = 0;
    for (const auto& [kind, work] : totals_.work) {
      calls += work.calls;
    }
    add("transfers between host and device", transfers, "");
    add("loading of batches", batch, "data.source");
    add("launches and overheads outside operations", rest, "batch.micro_batch, run.graphs",
        fmt::format("{:.0f} operations a step", calls));
  }

  const StepFloor floor_;
  TraceSummary summary_;
  Totals totals_;
  StepCauses found_;
};

}  // namespace

StepCauses step_causes(const JoinedTrace& trace, const StepFloor& floor) {
  return Causes(trace, floor).all();
}

std::string to_json(const StepCauses& causes) {
  nlohmann::ordered_json json;
  json["step_seconds"] = causes.step_seconds;
  json["floor_seconds"] = causes.floor_seconds;
  json["causes"] = nlohmann::ordered_json::array();
  for (const Cause& cause : causes.causes) {
    json["causes"].push_back({{"name", cause.name},
                              {"seconds", cause.seconds},
                              {"share", causes.step_seconds > 0 ? cause.seconds / causes.step_seconds : 0.0},
                              {"key", cause.key},
                              {"detail", cause.detail}});
  }
  return json.dump(2) + "\n";
}

std::string text_of(const StepCauses& causes) {
  const auto line = [&](const std::string& name, double seconds, const std::string& key, const std::string& detail) {
    std::string text = fmt::format("  {:<50} {:>9.2f} {:>6.1f}%", name, 1e3 * seconds,
                                   causes.step_seconds > 0 ? 100 * seconds / causes.step_seconds : 0.0);
    if (!detail.empty() || !key.empty()) {
      text += fmt::format("  {}{}{}", detail, detail.empty() || key.empty() ? "" : "; ", key);
    }
    return text + "\n";
  };
  std::string text = fmt::format("  {:<50} {:>9} {:>7}\n", "", "ms a step", "share");
  text += line("floor: the model's products at full rate", causes.floor_seconds, "", "");
  for (const Cause& cause : causes.causes) {
    text += line(cause.name, cause.seconds, cause.key, cause.detail);
  }
  return text + line("a step", causes.step_seconds, "", "");
}

}  // namespace orthant
