// What devices share of operations of plugins' own (Stream::apply).
#pragma once

#include <orthant/ops.h>

namespace orthant {

inline constexpr std::size_t most_own_tensors = 12;

// Errors: Error naming the operation where it has no name, no function on the host, too many tensors or an undefined
// one.
void check_own_operation(const OwnOperation& operation);

// Calls `host` on memory that the host can address: `data` gives the place of a tensor's bytes.
void run_on_host(const OwnOperation& operation, const std::function<std::byte*(const Tensor&)>& data);

}  // namespace orthant
