// Tables whose published numbers follow from a formula, or were measured on one layer.
#include <fmt/format.h>

#include <array>

#include "apps/cost/machine_file.h"
#include "apps/cost/memory.h"
#include "apps/cost/operations.h"
#include "bench/tables/tables.h"

namespace orthant::tables {
namespace {

constexpr const char* recalled = "The published numbers are as recalled, not looked up.";

cost::ModelShape gpt(int layers, int hidden, int heads) {
  cost::ModelShape model;
  model.layers = layers;
  model.hidden = hidden;
  model.ffn = 4.0 * hidden;
  model.heads = model.kv_heads = heads;
  model.head_size = static_cast<double>(hidden) / heads;
  model.sequence = 2048;
  model.vocabulary = 51200;
  model.learned_positions = true;
  return model;
}

// The layout of those tables: fp16, scores in memory.
cost::Layout early_layout(int tensor, double micro_batch) {
  cost::Layout layout;
  layout.ranks = layout.tensor = tensor;
  layout.global_batch = layout.micro_batch = micro_batch;
  layout.fused_attention = layout.overlapped = false;
  layout.narrow_gradients = true;
  return layout;
}

struct Technique {
  const char* name;
  bool sequence_parallel;
  cost::Recompute recompute;
  double forward = 0, backward = 0;  // published, ms
};

// Bytes that one layer keeps.
double layer_bytes(cost::ModelShape model, const cost::Layout& layout) {
  model.layers = 2;
  const double two = cost::stage_memory(model, layout, 0).activations;
  model.layers = 1;
  return two - cost::stage_memory(model, layout, 0).activations;
}

}  // namespace

Table layer_table(const Places& places) {
  Table table{"",
              "One layer of the 22 B model, forward and backward (Korthikanti et al., arXiv 2205.05198, table 4)",
              {"technique", "forward, published", "model", "backward, published", "model", "together, published",
               "model", "error"},
              {},
              std::string("Milliseconds, eight A100-80, tensor 8, micro-batch 4. ") + recalled};
  const cost::FactorFile factors = cost::load_factors(places.machines + "/factors.toml");
  const cost::Machine machine = cost::load_machine(places.machines + "/a100-80.toml", factors);
  const cost::ModelShape model = gpt(48, 6144, 64);
  for (const Technique& one : {Technique{"nothing again", false, cost::Recompute::none, 7.7, 11.9},
                               {"nothing again, sequence parallel", true, cost::Recompute::none, 7.2, 11.8},
                               {"all again", false, cost::Recompute::full, 7.7, 19.5},
                               {"selective", false, cost::Recompute::selective, 7.7, 13.2},
                               {"selective, sequence parallel", true, cost::Recompute::selective, 7.2, 13.1}}) {
    cost::Layout layout = early_layout(8, 4);
    layout.sequence_parallel = one.sequence_parallel;
    layout.recompute = one.recompute;
    const cost::BlockSeconds block = cost::block_seconds(model, layout, machine, factors.practice, false);
    const double forward = 1e3 * block.forward.total(), backward = 1e3 * block.backward.total();
    const double published = one.forward + one.backward;
    table.rows.push_back({one.name, fmt::format("{:.1f}", one.forward), fmt::format("{:.1f}", forward),
                          fmt::format("{:.1f}", one.backward), fmt::format("{:.1f}", backward),
                          fmt::format("{:.1f}", published), fmt::format("{:.1f}", forward + backward),
                          fmt::format("{:+.1f} %", 100 * ((forward + backward) / published - 1))});
  }
  return table;
}

Table activation_table() {
  Table table{
      "",
      "Activations that a layer keeps (Korthikanti et al., arXiv 2205.05198, table 2)",
      {"technique", "22 B, formula", "model", "175 B, formula", "model", "530 B, formula", "model", "1 T, formula",
       "model"},
      {},
      "MB of one layer, micro-batch 1, tensor 8. The formulas are the paper's, in s b h bytes: 10 + 24/t + 5 a s / "
      "(h t); (34 + 5 a s / h) / t; 10 + 24/t; 34/t; 2."};
  constexpr int t = 8;
  const std::array models = {gpt(48, 6144, 64), gpt(96, 12288, 96), gpt(105, 20480, 128), gpt(128, 25600, 160)};
  for (const Technique& one : {Technique{"tensor", false, cost::Recompute::none},
                               {"tensor, sequence parallel", true, cost::Recompute::none},
                               {"tensor, selective", false, cost::Recompute::selective},
                               {"tensor, sequence parallel, selective", true, cost::Recompute::selective},
                               {"all again", false, cost::Recompute::full}}) {
    std::vector<std::string> cells = {one.name};
    for (const cost::ModelShape& model : models) {
      cost::Layout layout = early_layout(t, 1);
      layout.sequence_parallel = one.sequence_parallel;
      layout.recompute = one.recompute;
      const double scores =
          one.recompute == cost::Recompute::none ? 5 * model.heads * model.sequence / model.hidden : 0;
      const double in_all = one.recompute == cost::Recompute::full ? 2
                            : one.sequence_parallel                ? (34 + scores) / t
                                                                   : 10 + (24 + scores) / t;
      cells.push_back(fmt::format("{:.1f}", 1e-6 * model.sequence * model.hidden * in_all));
      cells.push_back(fmt::format("{:.1f}", 1e-6 * layer_bytes(model, layout)));
    }
    table.rows.push_back(cells);
  }
  return table;
}

Table zero_table() {
  Table table{
      "",
      "Memory of model states under ZeRO (Rajbhandari et al., SC 2020, arXiv 1910.02054, table 1)",
      {"parameters", "data ranks", "stage 1, published", "model", "stage 2, published", "model", "stage 3, published",
       "model"},
      {},
      std::string("GB of a GPU: weights and gradients in 2 bytes, 12 of states. The model counts a GPT's parts one by "
                  "one and is scaled from its parameters to the paper's. ") +
          recalled};
  struct Published {
    double parameters;  // 10^9
    int layers, hidden, heads;
    std::array<std::array<double, 6>, 3> stages;
  };
  const std::array<int, 6> ranks = {1, 4, 16, 64, 256, 1024};
  for (const Published& one :
       {Published{7.5,
                  36,
                  4096,
                  32,
                  {{{120, 52.5, 35.6, 31.4, 30.4, 30.1},
                    {120, 41.3, 21.6, 16.6, 15.4, 15.1},
                    {120, 30, 7.5, 1.88, 0.47, 0.12}}}},
        {128,
         80,
         11520,
         96,
         {{{2048, 896, 608, 536, 518, 513}, {2048, 704, 368, 284, 263, 257}, {2048, 512, 128, 32, 8, 2}}}},
        {1000,
         128,
         25600,
         160,
         {{{16000, 7000, 4750, 4187, 4046, 4011},
           {16000, 5500, 2875, 2218, 2054, 2013},
           {16000, 4000, 1000, 250, 62.5, 15.6}}}}}) {
    const cost::ModelShape model = gpt(one.layers, one.hidden, one.heads);
    const double parameters = cost::stage_memory(model, early_layout(1, 1), 0).weights / cost::half_bytes;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      std::vector<std::string> cells = {fmt::format("{:g} B", one.parameters), std::to_string(ranks[i])};
      for (int stage = 1; stage <= 3; ++stage) {
        cost::Layout layout = early_layout(1, 1);
        layout.ranks = ranks[i];
        layout.global_batch = ranks[i];
        layout.zero = stage;
        const cost::StageMemory memory = cost::stage_memory(model, layout, 0);
        const double states = memory.weights + memory.gradients + memory.states;
        cells.push_back(fmt::format("{:g}", one.stages[static_cast<std::size_t>(stage) - 1][i]));
        const double scaled = states / parameters * one.parameters;
        cells.push_back(scaled >= 1000 ? fmt::format("{:.0f}", scaled) : fmt::format("{:.4g}", scaled));
      }
      table.rows.push_back(cells);
    }
  }
  return table;
}

}  // namespace orthant::tables
