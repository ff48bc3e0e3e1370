// What a model of this kind is told beside what every model is: keys in [model].
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/keys.h>
#include <orthant/settings.h>

namespace orthant::encoder_decoder {

struct StackKeys {
  std::int64_t encoder_layers = 0;  // 0: as layers, which are the decoder's
  std::int64_t source_length = 0;   // positions of the encoder; 0: data.sequence_length, the decoder's
  std::int64_t relative_buckets = 32;
  std::int64_t relative_distance = 128;
  std::int64_t start_token = 0;  // what a target goes on from
  std::int64_t end_token = -1;   // what ends a source and a target; -1: nothing does
  static const Keys<StackKeys>& keys();
};

inline StackKeys stack_keys(const Settings& s) {
  return read_keys<StackKeys>(kind_values(s, "model"));
}
inline std::int64_t encoder_layers(const Settings& s) {
  const std::int64_t written = stack_keys(s).encoder_layers;
  return written == 0 ? s.model.layers : written;
}
inline std::int64_t source_length(const Settings& s) {
  const std::int64_t written = stack_keys(s).source_length;
  return written == 0 ? s.data.sequence_length : written;
}

// Ends a source or a target, where it does not end so already.
inline void append_end(std::vector<std::int32_t>& tokens, const StackKeys& keys) {
  const auto end = static_cast<std::int32_t>(keys.end_token);
  if (keys.end_token >= 0 && (tokens.empty() || tokens.back() != end)) {
    tokens.push_back(end);
  }
}

inline constexpr int target_space = 0, source_space = 1;

}  // namespace orthant::encoder_decoder
