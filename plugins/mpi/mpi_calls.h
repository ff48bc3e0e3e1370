// What members tell each other about a call, and the tags of the messages of a channel.
#pragma once

#include <cstdint>

namespace orthant {

enum Tag { call_tag = 1, data_tag, message_tag, message_data_tag };
enum Kind : std::int64_t {
  all_reduce_kind = 1,
  all_gather_kind,
  reduce_scatter_kind,
  all_to_all_kind,
  broadcast_kind,
  reduce_kind,
  gather_kind,
  scatter_kind,
  barrier_kind,
  split_kind
};

}  // namespace orthant
