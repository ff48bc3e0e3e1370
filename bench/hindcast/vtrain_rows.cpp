// vtrain_multi.csv and vtrain_single.csv: GPT models on A100s.
#include <fmt/format.h>
#include <orthant/error.h>

#include <utility>

#include "apps/cost/step_time.h"
#include "bench/hindcast/row_parts.h"

namespace orthant::hindcast {
namespace {

void fill_vtrain_row(const CsvFile& file, std::size_t i, bool several, Row& row) {
  cost::ModelShape& model = row.model;
  cost::Layout& layout = row.layout;
  model.layers = file.count(i, "# layers");
  model.hidden = file.count(i, "hidden size");
  model.ffn = 4 * model.hidden;
  model.heads = model.kv_heads = file.count(i, "attention heads");
  model.head_size = model.hidden / model.heads;
  model.sequence = file.count(i, "sequence length");
  model.vocabulary = 51200;
  model.learned_positions = true;
  layout.ranks = file.count(i, "# GPUs");
  layout.global_batch = file.count(i, "global batch");
  layout.micro_batch = file.count(i, "micro batch");
  layout.tensor = file.count(i, "tensor parallelism");
  layout.pipeline = file.count(i, "pipeline parallelism");
  layout.fused_attention = layout.overlapped = false;
  layout.narrow_gradients = true;
  layout.recompute = several ? cost::Recompute::full : cost::Recompute::none;
  cost::check_layout(model, layout);
  row.sweep = fmt::format("{}, {} layers of {}, {} ranks, batch {:g}", row.source, model.layers, model.hidden,
                          layout.ranks, layout.global_batch);
  row.label = fmt::format("{} layers of {}, {}", model.layers, model.hidden, layout_label(layout));
  const double milliseconds = file.number(i, "iteration time (ms)").value_or(0);
  require(milliseconds > 0, "no iteration time");
  row.seconds = milliseconds / 1e3;
}

}  // namespace

Rows read_vtrain(const CsvFile& file) {
  Rows rows;
  const bool several = file.has("Parameters (billion)");
  for (std::size_t i = 0; i < file.rows(); ++i) {
    Row row;
    row.id = fmt::format("{}", i + 1);
    row.family = "vTrain";
    row.source = several ? "vTrain, several nodes" : "vTrain, one node";
    row.machine = "a100-80-4nic";
    row.held = several ? file.at(i, "Parameters (billion)") + " B" : "one node";
    row.fitted = several;
    row.computed = !several;
    add_row(rows, std::move(row), [&](Row& filled) { fill_vtrain_row(file, i, several, filled); });
  }
  return rows;
}

}  // namespace orthant::hindcast
