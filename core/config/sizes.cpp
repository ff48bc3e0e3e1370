#include <orthant/settings.h>

#include <algorithm>
#include <filesystem>

namespace orthant {

std::int64_t kv_heads_of(const Settings& s) {
  return s.model.kv_heads == 0 ? s.model.heads : s.model.kv_heads;
}

std::int64_t head_dim_of(const Settings& s) {
  if (s.model.attention == "latent") {
    return s.model.qk_nope_head_dim + s.model.qk_rope_head_dim;
  }
  return s.model.head_dim == 0 ? s.model.d_model / s.model.heads : s.model.head_dim;
}

std::int64_t rotary_channels_of(const Settings& s) {
  return s.model.rotary_channels == 0 ? head_dim_of(s) : s.model.rotary_channels;
}

std::int64_t d_ff_of(const Settings& s) {
  return s.model.d_ff == 0 ? 4 * s.model.d_model : s.model.d_ff;
}

std::int64_t d_expert_of(const Settings& s) {
  return s.moe.d_expert == 0 ? d_ff_of(s) : s.moe.d_expert;
}

std::int64_t d_shared_of(const Settings& s) {
  return s.moe.d_shared == 0 ? s.moe.shared_experts * d_expert_of(s) : s.moe.d_shared;
}

std::int64_t group_tokens_of(const Settings& s) {
  return s.moe.group_tokens == 0 ? s.data.sequence_length : s.moe.group_tokens;
}

std::int64_t micro_batch_of(const Settings& s, std::int64_t sequences) {
  return s.batch.micro_batch == 0 ? sequences : s.batch.micro_batch;
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
