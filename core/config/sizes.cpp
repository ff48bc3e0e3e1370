#include <orthant/part.h>
#include <orthant/settings.h>

#include <algorithm>
#include <filesystem>

#include "core/config/registry.h"

namespace orthant {

const KeyValues& kind_values(const ModelSettings& model) {
  return model.own;
}

const KeyValues& kind_values(const MoeSettings& moe) {
  return moe.own;
}

const KeyValues& kind_values(const OptimizerSettings& optimizer) {
  return optimizer.own;
}

KeyValues& kind_values(Settings& s, std::string_view table) {
  return table == "model"       ? s.model.own
         : table == "moe"       ? s.moe.own
         : table == "optimizer" ? s.optimizer.own
                                : s.own[std::string(table)];
}

const KeyValues& kind_values(const Settings& s, std::string_view table) {
  static const KeyValues none;
  const auto found = s.own.find(std::string(table));
  if (found == s.own.end() && table != "model" && table != "moe" && table != "optimizer") {
    const std::vector<CoreKey> keys = declared_keys(*s.catalogue);
    require(
        std::any_of(keys.begin(), keys.end(), [&](const CoreKey& key) { return key.of_kind && key.table == table; }),
        "no kind declares a key in a table [{}]", table);
  }
  return table == "model"       ? s.model.own
         : table == "moe"       ? s.moe.own
         : table == "optimizer" ? s.optimizer.own
         : found == s.own.end() ? none
                                : found->second;
}

std::int64_t kv_heads_of(const Settings& s) {
  return s.model.kv_heads.or_else(s.model.heads);
}

std::int64_t head_dim_of(const Settings& s) {
  return s.catalogue->get<AttentionPart>(s.model.attention).head_dim(s);
}

std::int64_t rotary_channels_of(const Settings& s) {
  return s.model.rotary_channels.or_else(head_dim_of(s));
}

std::int64_t d_ff_of(const Settings& s) {
  return s.model.d_ff.or_else(4 * s.model.d_model);
}

std::int64_t d_expert_of(const Settings& s) {
  return s.moe.d_expert.or_else(d_ff_of(s));
}

std::int64_t d_shared_of(const Settings& s) {
  return s.moe.d_shared.or_else(s.moe.shared_experts * d_expert_of(s));
}

std::int64_t group_tokens_of(const Settings& s) {
  return s.moe.group_tokens.or_else(s.data.sequence_length);
}

std::int64_t micro_batch_of(const Settings& s, std::int64_t sequences) {
  return s.batch.micro_batch.or_else(sequences);
}

std::vector<std::string> validation_names_of(const Settings& s) {
  if (!s.data.validation_names.empty()) {
    return s.data.validation_names;
  }
  std::vector<std::string> names;
  for (const std::string& path : s.data.validation_path) {
    names.push_back(std::filesystem::path(path).stem().string());
  }
  return names;
}

std::vector<std::int64_t> batch_sizes(const BatchSettings& batch) {
  std::vector<std::int64_t> sizes = {batch.sequences};
  sizes.insert(sizes.end(), batch.grow_to.begin(), batch.grow_to.end());
  return sizes;
}

std::size_t times_grown(const BatchSettings& batch, std::int64_t step) {
  const auto later = std::upper_bound(batch.grow_after.begin(), batch.grow_after.end(), step);
  return static_cast<std::size_t>(later - batch.grow_after.begin());
}

std::int64_t sequences_of_step(const BatchSettings& batch, std::int64_t step) {
  const std::size_t grown = times_grown(batch, step);
  return grown == 0 ? batch.sequences : batch.grow_to.at(grown - 1);
}

std::int64_t sequences_before(const BatchSettings& batch, std::int64_t step) {
  std::int64_t sequences = 0, from = 0, size = batch.sequences;
  for (std::size_t i = 0; i < times_grown(batch, step); ++i) {
    sequences += (batch.grow_after[i] - from) * size;
    from = batch.grow_after[i];
    size = batch.grow_to.at(i);
  }
  return sequences + (step - from) * size;
}

std::int64_t largest_batch(const BatchSettings& batch) {
  return batch.grow_to.empty() ? batch.sequences : batch.grow_to.back();
}

std::int64_t first_largest_step(const BatchSettings& batch) {
  return batch.grow_after.empty() ? 0 : batch.grow_after.back();
}

}  // namespace orthant
