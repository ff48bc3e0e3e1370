// core.csv: curated rows of papers and model cards.
#include <orthant/error.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "apps/cost/step_time.h"
#include "bench/hindcast/row_parts.h"

namespace orthant::hindcast {
namespace {

cost::ModelShape core_model(const CsvFile& file, std::size_t row) {
  cost::ModelShape model;
  model.layers = file.count(row, "L");
  model.hidden = file.count(row, "h");
  model.heads = file.count_if_given(row, "heads").value_or(std::max(1, static_cast<int>(model.hidden / 128)));
  model.kv_heads = file.count_if_given(row, "kv").value_or(model.heads);
  model.head_size = file.number(row, "head_dim").value_or(std::max(model.hidden / model.heads, 1.0));
  model.sequence = file.count(row, "seq");
  model.vocabulary = file.count_if_given(row, "vocab").value_or(51200);
  model.experts = file.count_if_given(row, "E", 0).value_or(0);
  model.top_k = file.count_if_given(row, "k", 0).value_or(0);
  model.expert_ffn = file.number(row, "d_exp").value_or(0);
  model.shared_ffn = file.number(row, "shared").value_or(0) * model.expert_ffn;
  model.ffn = file.number(row, "ffn").value_or(model.experts > 0 ? 0 : 4 * model.hidden);
  // Models with experts, and those whose inner size is not four times the hidden one, have gated products of three
  // matrices, and neither biases nor a tied output.
  model.gated = model.experts > 0 || model.ffn != 4 * model.hidden;
  model.biases = model.tied = model.learned_positions = !model.gated;
  require(model.experts == 0 || (model.top_k > 0 && model.expert_ffn > 0), "{}: a model with E = {} needs k and d_exp",
          file.place(row), model.experts);
  return model;
}

// "512", "16M tokens", "16M": sequences.
double batch_of(const CsvFile& file, std::size_t row, double sequence) {
  const std::string& text = file.at(row, "gbs");
  if (const std::size_t at = text.find('M'); at != std::string::npos) {
    double millions = 0;
    std::from_chars(text.data(), text.data() + at, millions);
    return std::max(1.0, std::round(millions * 1048576 / sequence));
  }
  return file.count(row, "gbs");
}

// "3", "ZeRO-3", "FSDP", "HSDP". Where stages keep their weights between micro-batches, sharding them all is stage 2.
int zero_of(const std::string& text, int stages) {
  const std::string name = lower_case(text);
  if (name.find("sdp") != std::string::npos) {
    return stages > 1 ? 2 : 3;
  }
  const std::size_t digit = name.find_first_of("0123");
  return digit == std::string::npos ? 0 : name[digit] - '0';
}

cost::Layout core_layout(const CsvFile& file, std::size_t row, const cost::ModelShape& model, Row& into) {
  const auto given = [&](const char* column) { return file.count_if_given(row, column); };
  cost::Layout layout;
  layout.ranks = file.count(row, "n");
  layout.tensor = given("tp").value_or(1);
  layout.pipeline = given("pp").value_or(1);
  layout.context = given("cp").value_or(1);
  layout.expert = given("ep").value_or(1);
  layout.expert_tensor = given("etp").value_or(model.experts > 0 ? unstated_expert_tensor(layout) : 1);
  layout.global_batch = batch_of(file, row, model.sequence);
  into.free_chunks = layout.pipeline > 1 && !given("vpp");
  layout.chunks = given("vpp").value_or(1);
  const std::string& micro_batch = file.at(row, "mbs");
  into.free_micro_batch = micro_batch.empty() || micro_batch == "?";
  layout.micro_batch = into.free_micro_batch ? 1 : file.count(row, "mbs");
  layout.zero = zero_of(file.at(row, "zero"), layout.pipeline);
  const std::string type = lower_case(file.at(row, "dtype")), recompute = file.at(row, "recompute");
  layout.precision = type.find("fp8") != std::string::npos ? cost::Precision::fp8
                     : type == "fp32"                      ? cost::Precision::fp32
                                                           : cost::Precision::half;
  layout.recompute = recompute.starts_with("full")        ? cost::Recompute::full
                     : recompute.starts_with("selective") ? cost::Recompute::selective
                                                          : cost::Recompute::none;
  // Runs in fp16 are those of 2019 to 2022: scores in memory, gradients of 2 bytes that are summed at the end.
  const bool early = type == "fp16";
  layout.fused_attention = layout.overlapped = !early;
  layout.narrow_gradients = early;
  // Practices of 2024 and later, as products in fp8 are.
  layout.once_a_node = layout.hidden_exchange = layout.precision == cost::Precision::fp8;
  layout.sequence_parallel = layout.tensor > 1 && (!early || recompute.find("SP") != std::string::npos);
  if (!early && layout.zero == 0) {
    layout.zero = 1;
  }
  return layout;
}

// Seconds from what the source publishes. FLOPs are counted as the sources of each metric do.
double seconds_of(const CsvFile& file, std::size_t row, const Row& read, double value, double peak) {
  const std::string metric = lower_case(file.at(row, "metric"));
  const double sequences = read.layout.global_batch, tokens = sequences * read.model.sequence;
  const double flops = cost::model_flops(read.model, sequences, false);
  const auto has = [&](const char* part) { return metric.find(part) != std::string::npos; };
  const double head = 6 * tokens * read.model.vocabulary * read.model.hidden;
  const bool again = has("hfu") && read.layout.recompute == cost::Recompute::full;
  const double counted = again ? head + (flops - head) * 4 / 3 : flops;
  if (has("tflop")) {
    return counted / (value * 1e12 * read.layout.ranks);
  }
  if (has("mfu") || has("hfu")) {
    return counted / (value / 100 * peak * read.layout.ranks);
  }
  if (has("tokens/s")) {
    return tokens / (value * (has("gpu") ? read.layout.ranks : 1));
  }
  if (has("samples/s") || has("sequences/s")) {
    return sequences / (value * (has("gpu") ? read.layout.ranks : 1));
  }
  if (has("step") || has("iteration")) {
    return has("ms") ? value / 1e3 : value;
  }
  return 0;
}

// What MFU is a share of.
double peak_of(const std::string& machine) {
  const double scale = 1e12;
  if (machine == "v100") {
    return 125 * scale;
  }
  if (machine.starts_with("a100")) {
    return 312 * scale;
  }
  if (machine == "mi250x") {
    return 191.5 * scale;
  }
  return (machine.starts_with("h") ? 989.5 : machine == "b200" || machine == "b300" ? 2250 : 2500) * scale;
}

// "Narayanan SC21 T1 (arXiv 2104.04473)": its tables are left out together.
std::string paper_of(const std::string& source) {
  std::size_t end = source.find(" (");
  for (std::size_t at = source.find(" T"); at != std::string::npos; at = source.find(" T", at + 1)) {
    if (at + 2 < source.size() && std::isdigit(static_cast<unsigned char>(source[at + 2])) != 0) {
      end = std::min(end, at);
    }
  }
  return source.substr(0, end);
}

// Errors: Error where the row cannot be scored, saying why.
void fill_core_row(const CsvFile& file, std::size_t i, Row& row) {
  row.machine = machine_of(file.at(i, "gpu"));
  require(!row.machine.empty(), "no machine file for '{}'", file.at(i, "gpu"));
  row.model = core_model(file, i);
  row.layout = core_layout(file, i, row.model, row);
  cost::check_layout(row.model, row.layout);
  const std::string value = lower_case(file.at(i, "value"));
  row.out_of_memory = value == "oom" || value == "out of memory" || value == "does not fit";
  if (!row.out_of_memory) {
    row.seconds = seconds_of(file, i, row, file.number(i, "value").value_or(0), peak_of(row.machine));
    require(*row.seconds > 0 && std::isfinite(*row.seconds), "metric '{}' is not known, or its value is not above 0",
            file.at(i, "metric"));
  }
  row.held = paper_of(row.source);
  const std::string& recompute = file.at(i, "recompute");
  row.told_memory = row.out_of_memory || (!row.free_micro_batch && !recompute.empty() && recompute != "?");
  const std::string& model = file.at(i, "model");
  row.label = model + ", " + layout_label(row.layout);
  if (const std::size_t comma = model.find(','); comma != std::string::npos) {
    row.sweep = fmt::format("{}, {} ranks, batch {:g} ({})", model.substr(0, comma), row.layout.ranks,
                            row.layout.global_batch, row.source);
  }
}

}  // namespace

Rows read_core(const CsvFile& file) {
  Rows rows;
  for (std::size_t i = 0; i < file.rows(); ++i) {
    Row row;
    row.id = file.at(i, "id");
    row.family = "papers";
    row.source = file.at(i, "source");
    add_row(rows, std::move(row), [&](Row& filled) { fill_core_row(file, i, filled); });
  }
  return rows;
}

}  // namespace orthant::hindcast
