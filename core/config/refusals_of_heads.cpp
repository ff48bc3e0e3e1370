#include "core/config/refusals_of_heads.h"

#include <algorithm>

#include "core/arch/decoder.h"
#include "core/config/rules.h"

namespace orthant {

std::vector<Refusal> refusals_of_heads(const Settings& s) {
  const ModelSettings& m = s.model;
  Refusals refusals;
  const std::int64_t written = m.head_dim.written(), turned = m.rotary_channels.written(), kv = m.kv_heads.written();
  const bool heads_divide = written > 0 || m.d_model % m.heads == 0;
  refusals.expect(
      heads_divide, {"model.heads", "model.d_model"},
      fmt::format("[model] heads: {} does not divide d_model {}", m.heads, m.d_model),
      fmt::format("write {} heads, or a d_model that is a multiple of {}", divisors_near(m.d_model, m.heads), m.heads));
  const std::int64_t head_dim = m.head_dim.or_else(m.d_model / m.heads);
  // Another kind says itself what its heads are.
  const bool turns = heads_divide && m.positions == Positions::rotary && m.kind == decoder_kind;
  refusals.expect(!turns || written > 0 || head_dim % 2 == 0, {"model.heads", "model.d_model", "model.positions"},
                  fmt::format("[model] heads: rotary positions turn pairs, but a head has {} / {} = {} dimensions",
                              m.d_model, m.heads, head_dim),
                  "write heads that leave an even number of dimensions, or positions = \"learned\"");
  refusals.expect(!turns || written % 2 == 0, {"model.head_dim", "model.positions"},
                  fmt::format("[model] head_dim: rotary positions turn pairs, {} is odd", written),
                  "write an even number, or positions = \"learned\"");
  refusals.expect(!turns || (turned % 2 == 0 && turned <= head_dim),
                  {"model.rotary_channels", written > 0 ? "model.head_dim" : "model.d_model"},
                  fmt::format("[model] rotary_channels: rotary positions turn pairs of a head's {} channels, not {}",
                              head_dim, turned),
                  fmt::format("write an even number up to {}, or 0 for all", head_dim));
  refusals.expect(
      kv == 0 || m.heads % kv == 0, {"model.kv_heads", "model.heads"},
      fmt::format("[model] kv_heads: {} does not divide heads {}", kv, m.heads),
      fmt::format("write {}, or 0 for as many as heads", divisors_near(m.heads, std::max<std::int64_t>(kv, 1))));
  return refusals.found;
}

}  // namespace orthant
