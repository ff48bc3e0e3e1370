// The performance summary of Megatron-Bridge: published recipes on recent machines.
#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "apps/cost/step_time.h"
#include "bench/hindcast/row_parts.h"

namespace orthant::hindcast {
namespace {

// "37556 (36108)": the first number; what stands in brackets is another precision. Nothing for "n/a" and "".
std::optional<double> first_number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

cost::Precision precision_of(const std::string& text) {
  const std::string name = lower_case(text);
  return name.find("fp4") != std::string::npos    ? cost::Precision::fp4
         : name.find("bf16") != std::string::npos ? cost::Precision::half
                                                  : cost::Precision::fp8;  // also where a release says nothing
}

// "LLAMA3.1_405B", "Llama 3.1 405B (w/ MTP)": one name for what is written in several ways.
std::string plain(const std::string& name) {
  std::string text;
  for (const char c : lower_case(name.substr(0, name.find(" (")))) {
    text += std::isalnum(static_cast<unsigned char>(c)) != 0 ? std::string(1, c) : "";
  }
  return text;
}

void fill_bridge_row(const CsvFile& file, std::size_t i, const Cards& cards, Row& row) {
  const std::string& name = file.at(i, "Model");
  row.machine = machine_of(file.at(i, "System"));
  require(!row.machine.empty(), "no machine file for '{}'", file.at(i, "System"));
  const auto found =
      std::find_if(cards.begin(), cards.end(), [&](const auto& one) { return plain(one.first) == plain(name); });
  require(found != cards.end(), "no card of the model '{}'", name.substr(0, name.find(" (")));
  const auto& card = *found;
  row.held = card.first;
  const auto number = [&](const char* column, double otherwise) {
    return first_number(file.at(i, column)).value_or(otherwise);
  };
  const double rate = number("Tokens / sec / GPU", 0);
  cost::Layout& layout = row.layout;
  row.model = card.second;
  row.model.sequence = number("Sequence Length", 4096);
  if (name.find("w/o MTP") != std::string::npos) {
    row.model.extra_layers = 0;
  }
  const auto whole = [&](const char* column) { return std::max(1, static_cast<int>(number(column, 1))); };
  layout.ranks = whole("#-GPUs");
  layout.tensor = whole("TP");
  layout.pipeline = whole("PP");
  layout.context = whole("CP");
  layout.chunks = whole("VP");
  layout.expert = row.model.experts > 0 ? whole("EP") : 1;
  layout.global_batch = number("GBS", 1);
  layout.micro_batch = number("MBS", 1);
  layout.zero = number("FSDP", 0) > 1 ? 3 : 1;
  layout.precision = precision_of(file.at(i, "Precision"));
  layout.sequence_parallel = layout.tensor > 1;
  layout.once_a_node = true;
  layout.recorded = row.machine.starts_with("gb");  // the recipes of NVL72 machines record graphs
  layout.batched_experts = name.find("tokendrop") != std::string::npos;
  if (layout.chunks * layout.pipeline > row.model.layers) {
    layout.chunks = std::max(1, row.model.layers / layout.pipeline);
  }
  require(rate > 0, "no tokens/s");
  cost::check_layout(row.model, layout);
  row.seconds = layout.global_batch * row.model.sequence / (rate * layout.ranks);
  row.label = fmt::format("{}, {}, {}", row.held, file.at(i, "System"), layout_label(layout));
}

}  // namespace

Rows read_bridge(const CsvFile& file, const Cards& cards) {
  Rows rows;
  for (std::size_t i = 0; i < file.rows(); ++i) {
    Row row;
    row.id = fmt::format("{} {} {} {}", file.at(i, "release"), file.at(i, "System"), file.at(i, "Model"),
                         file.at(i, "Precision"));
    row.family = "recipes";
    row.source = "Megatron-Bridge recipes";
    add_row(rows, std::move(row), [&](Row& filled) { fill_bridge_row(file, i, cards, filled); });
  }
  return rows;
}

}  // namespace orthant::hindcast
