#include <orthant/error.h>

#include "bench/hindcast/csv.h"
#include "bench/hindcast/row.h"

namespace orthant::hindcast {

Cards read_cards(const std::string& path) {
  const CsvFile file = read_csv(path);
  Cards cards;
  for (std::size_t i = 0; i < file.rows(); ++i) {
    const auto size = [&](const char* column) { return file.number(i, column).value_or(0); };
    const auto whole = [&](const char* column) { return file.count_if_given(i, column, 0).value_or(0); };
    cost::ModelShape model;
    model.layers = file.count(i, "layers");
    model.hidden = file.count(i, "hidden");
    model.ffn = size("ffn");
    model.heads = file.count(i, "heads");
    model.kv_heads = file.count(i, "kv");
    model.head_size = file.count(i, "head_size");
    model.value_size = size("value_size");
    model.query_rank = size("query_rank");
    model.kv_rank = size("kv_rank");
    model.rotary_size = size("rotary_size");
    model.vocabulary = file.count(i, "vocabulary");
    model.gated = whole("gated") != 0;
    model.tied = whole("tied") != 0;
    model.biases = false;
    model.experts = whole("experts");
    model.top_k = whole("top_k");
    model.expert_ffn = size("expert_ffn");
    model.shared_ffn = size("shared_ffn");
    model.dense_layers = whole("dense_layers");
    model.extra_layers = whole("extra_layers");
    model.window = size("window");
    cards.emplace_back(file.at(i, "name"), model);
  }
  return cards;
}

}  // namespace orthant::hindcast
