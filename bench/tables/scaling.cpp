// Tables of what nobody publishes in numbers: mixtures from 8 to 4,096 GPUs, and all-reduces by ring size and message.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/cost/machine_file.h"
#include "apps/cost/memory.h"
#include "apps/cost/step_time.h"
#include "bench/tables/tables.h"

namespace orthant::tables {
namespace {

constexpr const char* unpublished = "No published numbers stand beside these.";

// Half of Mixtral 8x7B's blocks, with 64 experts of an eighth of the size, eight for each token.
cost::ModelShape mixture() {
  cost::ModelShape model;
  model.layers = 16;
  model.hidden = 4096;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_size = 128;
  model.sequence = 4096;
  model.vocabulary = 32000;
  model.gated = true;
  model.tied = model.biases = false;
  model.experts = 64;
  model.top_k = 8;
  model.expert_ffn = 1792;
  return model;
}

struct ScalingMachine {
  cost::Machine machine;
  cost::Practice practice;
};

ScalingMachine h100(const Places& places) {
  const cost::FactorFile factors = cost::load_factors(places.machines + "/factors.toml");
  return {cost::load_machine(places.machines + "/h100.toml", factors), factors.practice};
}

// expert: ranks that share the experts; two_level: tokens travel once to each node.
cost::Layout layout_of(int ranks, int expert, bool two_level, double batch) {
  cost::Layout layout;
  layout.ranks = ranks;
  layout.expert = expert;
  layout.zero = 1;
  layout.global_batch = batch;
  layout.micro_batch = 1;
  layout.once_a_node = two_level;
  return layout;
}

Table scaling_table(const Places& places, const std::string& title, const std::string& note,
                    const std::function<double(int ranks)>& batch_of) {
  Table table{
      "",
      title,
      {"GPUs", "sequences", "expert 8, inside a node: s", "TFLOP/s a GPU", "exchange", "expert 64, across nodes: s",
       "TFLOP/s a GPU", "exchange", "the same, once to each node: s", "TFLOP/s a GPU", "exchange"},
      {},
      note + unpublished};
  const ScalingMachine on = h100(places);
  for (int ranks = 8; ranks <= 4096; ranks *= 2) {
    const double batch = batch_of(ranks);
    std::vector<std::string> cells = {std::to_string(ranks), fmt::format("{:g}", batch)};
    for (const auto& [expert, two_level] : {std::pair(8, false), {64, false}, {64, true}}) {
      if (expert > ranks) {
        cells.insert(cells.end(), {"-", "-", "-"});
        continue;
      }
      const cost::Layout layout = layout_of(ranks, expert, two_level, batch);
      const cost::StepTime time = cost::step_time(mixture(), layout, on.machine, on.practice);
      constexpr double usable = 0.94;  // of a GPU's memory, as in the hindcast
      const bool fits = cost::peak_memory(mixture(), layout).total() <= usable * on.machine.memory;
      const double rate = cost::model_flops(mixture(), batch, false) / time.seconds / ranks / 1e12;
      cells.push_back(fmt::format("{:.2f}{}", time.seconds, fits ? "" : " (too large)"));
      cells.push_back(fmt::format("{:.0f}", rate));
      cells.push_back(fmt::format("{:.0f} %", 100 * time.work.expert / time.seconds));
    }
    table.rows.push_back(cells);
  }
  return table;
}

std::string bytes_text(double bytes) {
  constexpr double kilo = 1024;
  return bytes < kilo * kilo ? fmt::format("{:g} KB", bytes / kilo) : fmt::format("{:g} MB", bytes / kilo / kilo);
}

// The first message of 1 KB, 2 KB, ... for which rings are as fast as double trees; 0: none up to 64 GB.
double rings_from(const cost::Group& group) {
  for (double bytes = 1024; bytes < 7e10; bytes *= 2) {
    if (cost::all_reduce(cost::Algorithm::ring, group, bytes) <=
        cost::all_reduce(cost::Algorithm::double_tree, group, bytes)) {
      return bytes;
    }
  }
  return 0;
}

}  // namespace

Table weak_scaling_table(const Places& places) {
  return scaling_table(
      places, "A mixture in weak scaling, 8 to 4,096 GPUs",
      "H100 with 400 Gb/s for each GPU, 64 experts of inner size 1792, eight for each token, 16 layers of "
      "4096, 8 sequences of 4096 tokens a GPU, ZeRO stage 1. Exchange: of the time of a "
      "step. Too large: it does not fit into 80 GB as it is. ",
      [](int ranks) { return 8.0 * ranks; });
}

Table strong_scaling_table(const Places& places) {
  return scaling_table(places, "A mixture in strong scaling, 8 to 4,096 GPUs",
                       "The same with 4,096 sequences a step on any number of GPUs. ", [](int) { return 4096.0; });
}

Table all_reduce_table(const Places& places) {
  Table table{
      "",
      "All-reduce by the number of GPUs and the message",
      {"GPUs", "message", "ring, us", "double tree, us", "ring in nodes and across, us", "switches that add, us",
       "fastest"},
      {},
      std::string("H100, rings and trees over all ranks. Switches: NVLink's alone add up in this machine file, so that "
                  "the column ends where a node does. ") +
          unpublished};
  const cost::Machine machine = h100(places).machine;
  const std::array<std::pair<cost::Algorithm, const char*>, 4> algorithms = {
      std::pair(cost::Algorithm::ring, "ring"),
      {cost::Algorithm::double_tree, "double tree"},
      {cost::Algorithm::hierarchical, "hierarchical"},
      {cost::Algorithm::in_network, "switches"}};
  for (const int ranks : {8, 64, 512, 4096}) {
    const cost::Group group = cost::group_of(machine, ranks, 1);
    for (const double bytes : {4096.0, 262144.0, 16777216.0, 1073741824.0}) {
      std::vector<std::string> cells = {std::to_string(ranks), bytes_text(bytes)};
      double least = 0;
      std::string fastest;
      for (const auto& [algorithm, name] : algorithms) {
        const bool possible = algorithm != cost::Algorithm::in_network || (group.near.reduces && group.nodes() == 1);
        const double seconds = possible ? cost::all_reduce(algorithm, group, bytes) : 0;
        cells.push_back(possible ? fmt::format("{:.0f}", 1e6 * seconds) : "-");
        if (possible && (fastest.empty() || seconds < least)) {
          least = seconds;
          fastest = name;
        }
      }
      cells.push_back(fastest);
      table.rows.push_back(cells);
    }
  }
  return table;
}

Table trees_table(const Places& places) {
  Table table{
      "",
      "Where double trees beat rings",
      {"GPUs", "H100: rings from", "A100-80: rings from", "V100: rings from"},
      {},
      std::string("The smallest message, of powers of two from 1 KB on, for which a ring over all GPUs is as fast as "
                  "double binary trees. ") +
          unpublished};
  const cost::FactorFile factors = cost::load_factors(places.machines + "/factors.toml");
  for (int ranks = 2; ranks <= 16384; ranks *= 2) {
    std::vector<std::string> cells = {std::to_string(ranks)};
    for (const char* name : {"h100", "a100-80", "v100"}) {
      const cost::Machine machine = cost::load_machine(fmt::format("{}/{}.toml", places.machines, name), factors);
      const double bytes = rings_from(cost::group_of(machine, ranks, 1));
      cells.push_back(bytes > 0 ? bytes_text(bytes) : "never");
    }
    table.rows.push_back(cells);
  }
  return table;
}

}  // namespace orthant::tables
