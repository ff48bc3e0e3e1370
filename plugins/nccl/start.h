// What a rank needs to know before it can meet the others.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <orthant/module.h>

#include "rendezvous.h"

namespace orthant::nccl {

using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

// Rank and world size from `config`; the address from ORTHANT_RENDEZVOUS, the secret from ORTHANT_SECRET or
// ORTHANT_SECRET_FILE, which `orthant launch` sets. Errors: Error that says what to set.
RendezvousConfig rendezvous_config(const CommunicatorConfig& config, const EnvironmentLookup& environment);

}  // namespace orthant::nccl
