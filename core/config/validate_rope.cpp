#include "core/config/validate_rope.h"

#include <orthant/part.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/arch/rotary.h"

namespace orthant {
namespace {

// A key that only some kinds of rope_scaling read.
struct RopeKey {
  const char* key;
  bool same;  // as by default
  std::set<RopeScaling> readers;
};

void check_rope_readers(const RotaryKeys& m, Rules& rules) {
  const RotaryKeys d;
  using enum RopeScaling;
  const RopeKey keys[] = {
      {"rope_factor", m.rope_factor == d.rope_factor, {linear, llama3, yarn, longrope, dynamic}},
      {"rope_original_positions",
       m.rope_original_positions == d.rope_original_positions,
       {llama3, yarn, longrope, dynamic}},
      {"rope_low_freq_factor", m.rope_low_freq_factor == d.rope_low_freq_factor, {llama3}},
      {"rope_high_freq_factor", m.rope_high_freq_factor == d.rope_high_freq_factor, {llama3}},
      {"rope_beta_fast", m.rope_beta_fast == d.rope_beta_fast, {yarn}},
      {"rope_beta_slow", m.rope_beta_slow == d.rope_beta_slow, {yarn}},
      {"rope_truncate", m.rope_truncate == d.rope_truncate, {yarn}},
      {"rope_attention_factor", m.rope_attention_factor == d.rope_attention_factor, {yarn, longrope}},
      {"rope_mscale", m.rope_mscale == d.rope_mscale, {yarn}},
      {"rope_mscale_all_dim", m.rope_mscale_all_dim == d.rope_mscale_all_dim, {yarn}},
      {"rope_alpha", m.rope_alpha == d.rope_alpha, {dynamic}},
      {"rope_short_factors", m.rope_short_factors.empty(), {longrope}},
      {"rope_long_factors", m.rope_long_factors.empty(), {longrope}}};
  const char* const names[] = {"none", "linear", "llama3", "yarn", "longrope", "dynamic"};
  const RopeScaling kind = m.rope_scaling;
  for (const RopeKey& one : keys) {
    const bool read = one.readers.contains(kind);
    rules.expect(
        one.same || read, {fmt::format("model.{}", one.key), "model.rope_scaling"},
        fmt::format("[model] {}: rope_scaling \"{}\" takes no notice of it", one.key, names[static_cast<int>(kind)]),
        "leave it out, or write another rope_scaling");
  }
}

void check_longrope(const Settings& s, const RotaryKeys& m, Rules& rules) {
  const bool known = s.catalogue->has<AttentionPart>(s.model.attention);
  const std::int64_t width = s.model.d_model / std::max<std::int64_t>(s.model.heads, 1);
  const std::int64_t pairs = (known ? s.catalogue->get<AttentionPart>(s.model.attention).rotary_channels(s)
                                    : s.model.rotary_channels.or_else(s.model.head_dim.or_else(width))) /
                             2;
  rules.expect(m.rope_original_positions != 1, {"model.rope_original_positions"},
               "[model] rope_original_positions: \"longrope\" divides by its logarithm, which is 0",
               "write the length of the first training's sequences, such as 4096");
  rules.expect(pairs <= most_divided_pairs, {"model.rope_scaling", "model.head_dim"},
               fmt::format("[model] rope_scaling: a head has {} rotary pairs, \"longrope\" has divisors for at most {}",
                           pairs, most_divided_pairs),
               "write a smaller head_dim or rotary_channels");
  for (const auto& [key, factors] :
       {std::pair("rope_short_factors", &m.rope_short_factors), std::pair("rope_long_factors", &m.rope_long_factors)}) {
    const bool sound = std::all_of(factors->begin(), factors->end(),
                                   [](double factor) { return positive_float(factor) && finite_float(factor); });
    rules.expect(static_cast<std::int64_t>(factors->size()) == pairs && sound,
                 {fmt::format("model.{}", key), "model.rope_scaling"},
                 fmt::format("[model] {}: {} numbers{}, a head has {} rotary pairs", key, factors->size(),
                             sound ? "" : ", and not all above 0", pairs),
                 "write one number above 0 for each pair");
  }
}

}  // namespace

void check_rope(const Settings& s, Rules& rules) {
  const auto m = read_keys<RotaryKeys>(s.model.own);
  rules.expect(m.rope_theta > 0, {"model.rope_theta"},
               fmt::format("[model] rope_theta: {} is not above 0", m.rope_theta), "write a number such as 10000");
  const bool rotary = s.model.positions == Positions::rotary;
  rules.expect(rotary || !m.rope_interleaved, {"model.rope_interleaved", "model.positions"},
               "[model] rope_interleaved: positions are not rotary", "write positions = \"rotary\", or leave it out");
  rules.expect(rotary || s.model.rotary_channels == 0, {"model.rotary_channels", "model.positions"},
               "[model] rotary_channels: positions are not rotary", "write positions = \"rotary\", or leave it out");
  rules.expect(m.rope_local_theta == 0 || (rotary && s.model.sliding_window > 0),
               {"model.rope_local_theta", "model.sliding_window", "model.positions"},
               "[model] rope_local_theta: no block has a window and rotary positions",
               "write sliding_window and positions = \"rotary\", or leave it out");
  rules.expect(rotary || m.rope_scaling == RopeScaling::none, {"model.rope_scaling", "model.positions"},
               "[model] rope_scaling: positions are not rotary", "write positions = \"rotary\", or leave it out");
  check_rope_readers(m, rules);
  const bool by_length = m.rope_scaling == RopeScaling::dynamic && m.rope_alpha == 0;
  if (m.rope_scaling == RopeScaling::llama3 || m.rope_scaling == RopeScaling::yarn ||
      m.rope_scaling == RopeScaling::longrope || by_length) {
    rules.expect(m.rope_original_positions > 0, {"model.rope_original_positions", "model.rope_scaling"},
                 "[model] rope_original_positions: the rule needs the length of the first training's sequences",
                 "write it in positions, such as 4096");
  }
  if (m.rope_scaling == RopeScaling::llama3) {
    rules.expect(m.rope_low_freq_factor < m.rope_high_freq_factor,
                 {"model.rope_low_freq_factor", "model.rope_high_freq_factor"},
                 fmt::format("[model] rope_low_freq_factor: {} is not below rope_high_freq_factor {}",
                             m.rope_low_freq_factor, m.rope_high_freq_factor),
                 "write the smaller number here, as in 1 and 4");
  }
  if (m.rope_scaling == RopeScaling::longrope) {
    check_longrope(s, m, rules);
  }
  if (m.rope_scaling == RopeScaling::yarn) {
    rules.expect(m.rope_theta > 1, {"model.rope_theta", "model.rope_scaling"},
                 fmt::format("[model] rope_theta: \"yarn\" takes its logarithm, {} is not above 1", m.rope_theta),
                 "write a number such as 10000");
    rules.expect(m.rope_beta_slow > 0 && m.rope_beta_slow <= m.rope_beta_fast,
                 {"model.rope_beta_slow", "model.rope_beta_fast"},
                 fmt::format("[model] rope_beta_slow: {} is not between 0 and rope_beta_fast {}", m.rope_beta_slow,
                             m.rope_beta_fast),
                 "write numbers such as 1 and 32");
    rules.expect(m.rope_mscale == 0 || m.rope_mscale_all_dim > 0, {"model.rope_mscale", "model.rope_mscale_all_dim"},
                 "[model] rope_mscale: the attention factor is a quotient of rope_mscale's and rope_mscale_all_dim's",
                 "write both, or leave rope_mscale out");
    const double factor = rotary_scaling(m, 2).magnitude, of_scores = rotary_score_factor(m);
    const bool written = m.rope_attention_factor > 0;
    rules.expect(
        positive_float(factor) && finite_float(factor) && finite_float(of_scores),
        written ? std::vector<std::string>{"model.rope_attention_factor", "model.rope_mscale_all_dim"}
                : std::vector<std::string>{"model.rope_mscale", "model.rope_mscale_all_dim"},
        fmt::format("[model] {}: queries and keys would be multiplied by {}, scores by {}, and one of them is 0 "
                    "or infinite in single precision",
                    written ? "rope_attention_factor" : "rope_mscale", factor, of_scores),
        "write numbers near 1");
  }
}

}  // namespace orthant
