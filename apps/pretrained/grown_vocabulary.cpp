#include "apps/pretrained/grown_vocabulary.h"

#include <fmt/format.h>
#include <orthant/error.h>

#include <algorithm>
#include <vector>

namespace orthant {

std::int64_t grow_vocabulary(OurKeys& keys, std::int64_t asked, const std::string& where) {
  const auto key = std::find_if(keys.begin(), keys.end(), [](const auto& k) { return k.first == "model.vocab_size"; });
  require(key != keys.end(), "{} says no vocabulary", where);
  const std::int64_t published = std::stoll(key->second);
  if (asked == 0) {
    return published;
  }
  if (asked < published) {
    throw ConfigError(
        fmt::format("--vocabulary {}: {} has {} tokens already; give more, or leave it out", asked, where, published));
  }
  key->second = std::to_string(asked);
  return published;
}

void fill_new_rows(float* table, std::int64_t rows, std::int64_t all, std::int64_t columns) {
  std::vector<double> mean(static_cast<std::size_t>(columns));
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    mean[static_cast<std::size_t>(i % columns)] += table[i];
  }
  for (std::int64_t i = rows * columns; i < all * columns; ++i) {
    table[i] = static_cast<float>(mean[static_cast<std::size_t>(i % columns)] / static_cast<double>(rows));
  }
}

bool has_row_for_each_token(const std::string& name) {
  return name == "model.embed_tokens.weight" || name == "lm_head.weight" || name == "lm_head.bias";
}

}  // namespace orthant
