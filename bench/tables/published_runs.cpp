// Tables of published runs: the rows of core.csv with what the model says of them.
#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <map>

#include "apps/cost/step_time.h"
#include "bench/hindcast/hindcast.h"
#include "bench/tables/tables.h"

namespace orthant::tables {
namespace {

struct PublishedRun {
  hindcast::Row row;
  double predicted = 0;  // s
};

constexpr const char* seen_rows =
    " These rows are among those that the factors were fitted to; errors of rows held out are in hindcast.md.";

// Of one source, by the factors that are committed.
std::vector<PublishedRun> runs_of(const Places& places, const std::string& source) {
  hindcast::Rows rows = hindcast::read_rows(places.data + "/core.csv", places.data);
  std::erase_if(rows.scored, [&](const hindcast::Row& row) { return !row.source.starts_with(source); });
  require(!rows.scored.empty(), "{}/core.csv has no row of '{}'", places.data, source);
  const hindcast::Machines machines = hindcast::machines_of(rows, places.machines);
  const cost::FactorFile factors = cost::load_factors(places.machines + "/factors.toml");
  std::vector<PublishedRun> runs;
  for (const hindcast::Row& row : rows.scored) {
    const cost::Machine& machine = machines.at(row.machine);
    const hindcast::Prepared prepared = hindcast::prepare(row, machine, factors.practice);
    runs.push_back({prepared.row, hindcast::predicted_seconds(prepared, machine, factors.practice)});
  }
  return runs;
}

// TFLOP/s of one GPU: with what is computed again, as the papers of that time count.
double teraflops(const PublishedRun& run, double seconds) {
  const cost::ModelShape& model = run.row.model;
  const double sequences = run.row.layout.global_batch, flops = cost::model_flops(model, sequences, false);
  const double head = 6 * sequences * model.sequence * model.vocabulary * model.hidden;
  const double again = run.row.layout.recompute == cost::Recompute::full ? (flops - head) / 3 : 0;
  return (flops + again) / seconds / run.row.layout.ranks / 1e12;
}

std::string signed_percent(double part) {
  return fmt::format("{:+.1f} %", 100 * part);
}

// The model's name in a label: what stands before the layout.
std::string model_of(const hindcast::Row& row) {
  return row.label.substr(0, row.label.find(','));
}

}  // namespace

Table megatron_table(const Places& places) {
  Table table{
      "",
      "Megatron-LM, 1.7 B to 1 T parameters (Narayanan et al., SC 2021, arXiv 2104.04473, table 1)",
      {"model", "GPUs", "tensor", "pipeline", "batch", "TFLOP/s a GPU, published", "model of time", "error"},
      {},
      std::string("A100-80, fp16, everything computed again. Micro-batches and chunks are not published: they are "
                  "those that the model finds fastest.") +
          seen_rows};
  for (const PublishedRun& run : runs_of(places, "Narayanan SC21 T1")) {
    const double published = teraflops(run, *run.row.seconds), predicted = teraflops(run, run.predicted);
    table.rows.push_back({model_of(run.row), std::to_string(run.row.layout.ranks),
                          std::to_string(run.row.layout.tensor), std::to_string(run.row.layout.pipeline),
                          fmt::format("{:g}", run.row.layout.global_batch), fmt::format("{:.0f}", published),
                          fmt::format("{:.0f}", predicted), signed_percent(predicted / published - 1)});
  }
  return table;
}

Table recompute_table(const Places& places) {
  Table table{"",
              "Selective recomputation and sequence parallelism (Korthikanti et al., arXiv 2205.05198, table 5)",
              {"model", "GPUs", "full, published", "model", "selective + sequence, published", "model",
               "gain, published", "gain, model"},
              {},
              std::string("Seconds of a step. The gain is what a step is shorter by.") + seen_rows};
  std::map<int, std::pair<const PublishedRun*, const PublishedRun*>> pairs;  // by GPUs: full, selective
  const std::vector<PublishedRun> runs = runs_of(places, "Korthikanti T5");
  for (const PublishedRun& run : runs) {
    auto& pair = pairs[run.row.layout.ranks];
    (run.row.layout.recompute == cost::Recompute::full ? pair.first : pair.second) = &run;
  }
  for (const auto& [ranks, pair] : pairs) {
    require(pair.first != nullptr && pair.second != nullptr, "table 5 on {} GPUs has one row, not two", ranks);
    const double full = *pair.first->row.seconds, selective = *pair.second->row.seconds;
    const double full_model = pair.first->predicted, selective_model = pair.second->predicted;
    table.rows.push_back({model_of(pair.first->row), std::to_string(ranks), fmt::format("{:.2f}", full),
                          fmt::format("{:.2f}", full_model), fmt::format("{:.2f}", selective),
                          fmt::format("{:.2f}", selective_model), signed_percent(1 - selective / full),
                          signed_percent(1 - selective_model / full_model)});
  }
  return table;
}

Table folding_table(const Places& places) {
  Table table{
      "",
      "Mixtures of experts in strong scaling (MoE Parallel Folding, arXiv 2504.14960, table 4)",
      {"model and layout", "GPUs", "seconds of a step, published", "model of time", "error"},
      {},
      std::string("H100. Published as MFU; seconds follow from the model's FLOPs. Exchanges stay inside a node where "
                  "expert times the ranks of one expert is at most 8.") +
          seen_rows};
  for (const PublishedRun& run : runs_of(places, "MoE Parallel Folding T4")) {
    table.rows.push_back({run.row.label, std::to_string(run.row.layout.ranks), fmt::format("{:.2f}", *run.row.seconds),
                          fmt::format("{:.2f}", run.predicted), signed_percent(run.predicted / *run.row.seconds - 1)});
  }
  return table;
}

}  // namespace orthant::tables
