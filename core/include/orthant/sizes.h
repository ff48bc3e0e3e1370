// Sizes of a model and a batch that follow from several settings. They need Settings by name only: a library that asks
// here, and includes no settings.h, stays valid when a setting is added.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <orthant/abi/sizes.h>

namespace orthant {

struct Settings;

// A size whose 0 stands for another setting: what it comes to is asked below. Settings keep what was written, so that a
// refusal points at the key that somebody chose, and a changed d_model changes what follows from it. It is no number by
// itself, so that nobody computes with the 0.
class FollowingSize {
 public:
  FollowingSize(std::int64_t written = 0) : written_(written) {}  // implicit: a setting is assigned a number
  std::int64_t written() const { return written_; }
  std::int64_t or_else(std::int64_t size) const { return written_ == 0 ? size : written_; }
  bool operator==(const FollowingSize&) const = default;

 private:
  std::int64_t written_;
};

std::int64_t kv_heads_of(const Settings& settings);
std::int64_t head_dim_of(const Settings& settings);         // latent: of queries and keys
std::int64_t rotary_channels_of(const Settings& settings);  // of a head of multi_head attention
std::int64_t d_ff_of(const Settings& settings);
std::int64_t d_expert_of(const Settings& settings);
std::int64_t d_shared_of(const Settings& settings);
std::int64_t group_tokens_of(const Settings& settings);
// Sequences of a micro-batch on a rank that holds `sequences` of a first step's.
std::int64_t micro_batch_of(const Settings& settings, std::int64_t sequences);
// One for each file of data.validation_path: a file's name without its last ending where nobody named it.
std::vector<std::string> validation_names_of(const Settings& settings);

}  // namespace orthant
