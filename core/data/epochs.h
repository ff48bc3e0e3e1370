// The endless row of epochs of a source that ends.
#pragma once

#include <orthant/random.h>
#include <orthant/source.h>

#include <cstdint>
#include <optional>

#include "core/data/permutation.h"

namespace orthant {

// Which of a source's sequences is number `number` of all its epochs: each epoch has every sequence once, in an order
// of its own, drawn from the seed. epoch: sequences of the source; nothing: it is endless, and read in order.
inline EpochSequence number_in_epoch(std::uint64_t seed, std::int64_t number, std::optional<std::int64_t> epoch) {
  constexpr std::uint32_t epoch_site = 2;  // of Purpose::data_order; the others are the sources'
  if (!epoch.has_value()) {
    return {.number = number};
  }
  const std::int64_t at = number / *epoch;
  const Permutation shuffle({seed, Purpose::data_order, epoch_site, static_cast<std::uint32_t>(at)},
                            static_cast<std::uint64_t>(*epoch));
  return {static_cast<std::int64_t>(shuffle(static_cast<std::uint64_t>(number % *epoch))), at};
}

}  // namespace orthant
