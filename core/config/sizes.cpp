#include <orthant/settings.h>

#include <filesystem>

namespace orthant {

std::int64_t kv_heads_of(const Settings& s) {
  return s.model.kv_heads == 0 ? s.model.heads : s.model.kv_heads;
}

std::int64_t blocks_of(const Settings& s) {
  return s.model.layers + s.model.mtp_depth;
}

std::int64_t layers_of(const Settings& s) {
  return blocks_of(s) + 2;
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

}  // namespace orthant
