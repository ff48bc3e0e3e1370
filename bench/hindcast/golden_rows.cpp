// Golden values of Megatron-LM's functional tests: iteration times and peaks of allocated bytes.
#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/cost/step_time.h"
#include "bench/hindcast/row_parts.h"

namespace orthant::hindcast {
namespace {

cost::ModelShape golden_model(const CsvFile& file, std::size_t row, int tensor) {
  cost::ModelShape model;
  model.layers = file.count(row, "--num-layers");
  model.hidden = file.count(row, "--hidden-size");
  model.heads = file.count(row, "--num-attention-heads");
  model.kv_heads = file.count_if_given(row, "--num-query-groups").value_or(model.heads);
  model.head_size = model.hidden / model.heads;
  model.sequence = file.count(row, "--seq-length");
  model.gated = !file.at(row, "--swiglu").empty();
  model.ffn = file.count_if_given(row, "--ffn-hidden-size").value_or(static_cast<int>(4 * model.hidden));
  model.experts = file.count_if_given(row, "--num-experts").value_or(0);
  model.top_k = model.experts > 0 ? file.count_if_given(row, "--moe-router-topk").value_or(2) : 0;
  model.expert_ffn = model.experts > 0 ? file.number(row, "--moe-ffn-hidden-size").value_or(model.ffn) : 0;
  model.shared_ffn = file.number(row, "--moe-shared-expert-intermediate-size").value_or(0);
  model.learned_positions = true;
  if (!file.at(row, "--multi-latent-attention").empty()) {  // the sizes of DeepSeek-V3, which these tests take
    model.head_size = 192;
    model.value_size = 128;
    model.query_rank = 1536;
    model.kv_rank = 512;
    model.rotary_size = 64;
    model.biases = false;
  }
  model.biases = model.biases && !model.gated;
  // The tests' tokenizer is GPT-2's; the embedding is padded to a multiple of this times the tensor ranks.
  const double multiple = file.count_if_given(row, "--make-vocab-size-divisible-by").value_or(128) * tensor;
  const double vocabulary = file.count_if_given(row, "--vocab-size").value_or(50257);
  model.vocabulary = std::ceil(vocabulary / multiple) * multiple;
  return model;
}

void fill_golden_row(const CsvFile& file, std::size_t i, Row& row) {
  const std::string& name = file.at(i, "case");
  const std::string& values = file.at(i, "file");
  const std::string kind = name.substr(0, name.find('/'));
  require(kind == "gpt" || kind == "moe" || kind == "mixtral", "no decoder of equal layers");
  require(name.find("grpo") == std::string::npos && name.find("distill") == std::string::npos,
          "not a step of pretraining");
  row.machine = machine_of(values);
  if (row.machine.empty()) {
    row.machine = "a100-80";
  }
  const auto given = [&](const char* column) { return file.count_if_given(i, column); };
  const auto flag = [&](const char* column) { return !file.at(i, column).empty(); };
  cost::Layout& layout = row.layout;
  layout.tensor = given("--tensor-model-parallel-size").value_or(1);
  layout.pipeline = given("--pipeline-model-parallel-size").value_or(1);
  layout.context = given("--context-parallel-size").value_or(1);
  layout.expert = given("--expert-model-parallel-size").value_or(1);
  row.model = golden_model(file, i, layout.tensor);
  // Five parts. All cases of one layout are in the same, for many differ by little more than their name.
  row.held = fmt::format(
      "part {}", 1 + (layout.tensor + 3 * layout.pipeline + 7 * layout.context + (row.model.experts > 0 ? 11 : 0)) % 5);
  const int least = layout.tensor * layout.pipeline * layout.context;
  const auto named = [&](const char* part) { return name.find(part) != std::string::npos; };
  // How many ranks ran is not among the settings: releases are tried on 64, all else on 8, or on one node of four.
  const int most = named("release") ? 64 : named("_1node") && row.machine == "gb200" ? 4 : 8;
  layout.ranks = (std::max(least, most) + least - 1) / least * least;
  layout.expert_tensor = given("--expert-tensor-parallel-size").value_or(unstated_expert_tensor(layout));
  layout.micro_batch = file.count(i, "--micro-batch-size");
  layout.global_batch = given("--global-batch-size").value_or(static_cast<int>(layout.micro_batch * layout.data() * 8));
  if (const std::optional<int> of_piece = given("--num-layers-per-virtual-pipeline-stage")) {
    layout.chunks = std::max(1, row.model.layers / layout.pipeline / *of_piece);
  }
  layout.chunks = given("--virtual-pipeline-model-parallel-size").value_or(layout.chunks);
  // Where blocks are spread unevenly, the name tells it.
  if (named("uneven_pipeline") && layout.pipeline == 4 && row.model.layers == 12) {
    layout.blocks = {2, 4, 4, 2};
  } else if (named("account_for_embedding") && layout.pipeline == 4 && row.model.layers == 6) {
    layout.chunks = 2;
    layout.blocks = {0, 1, 1, 1, 1, 1, 1, 0};  // embedding and loss count as one block each
  }
  layout.zero = flag("--use-megatron-fsdp") ? 3 : flag("--use-distributed-optimizer") ? 1 : 0;
  const std::string& recompute = file.at(i, "--recompute-granularity");
  layout.recompute = recompute == "full" ? cost::Recompute::full : cost::Recompute::none;
  layout.sequence_parallel = flag("--sequence-parallel") && layout.tensor > 1;
  layout.precision = flag("--fp8-format")               ? cost::Precision::fp8
                     : flag("--bf16") || flag("--fp16") ? cost::Precision::half
                                                        : cost::Precision::fp32;
  // Nor is the kernel of attention. Tests that compare a run with itself to the bit write the scores to memory,
  // unless their name says that they go on from a checkpoint or are not deterministic; so did all of an older
  // cluster.
  const bool older = values.find("dracooci") != std::string::npos && !named("reshard");
  layout.fused_attention = file.at(i, "--transformer-impl") == "transformer_engine" &&
                           (layout.context > 1 || row.model.kv_rank > 0 || named("release") || named("speed") ||
                            ((named("resume") || named("nondeterministic")) && !older));
  layout.optimizer_copies = named("multi_dist_optimizer_instances") ? 2 : 1;
  cost::check_layout(row.model, layout);
  const auto number = [&](const char* column) { return file.number(i, column); };
  row.seconds = number("iter_time_median_s");
  row.peak_bytes = number("mem_max_bytes");
  row.label = name + ", " + layout_label(layout);
  row.weight = 0.1;  // of steps of a fraction of a second, many of the same test
  // Routers that have been trained for some dozens of steps: set once, on these rows.
  constexpr double young_router = 1.35;
  row.busiest = row.model.experts > 0 ? young_router : 1;
}

}  // namespace

Rows read_golden(const CsvFile& file) {
  Rows rows;
  for (std::size_t i = 0; i < file.rows(); ++i) {
    Row row;
    row.id = file.at(i, "case") + " " + file.at(i, "file");
    row.family = "golden values";
    row.source = "Megatron-LM golden values";
    add_row(rows, std::move(row), [&](Row& filled) { fill_golden_row(file, i, filled); });
  }
  return rows;
}

}  // namespace orthant::hindcast
