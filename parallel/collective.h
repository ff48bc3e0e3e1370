// Which call of a Group it is.
#pragma once

#include <cstdint>

namespace orthant {

enum class Collective : std::uint32_t {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier,
  send,
  recv
};
const char* name_of(Collective kind);

}  // namespace orthant
