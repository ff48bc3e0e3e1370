// The `nccl` communicator, over any NcclApi.
#pragma once

#include <memory>

#include <orthant/group.h>

#include "nccl_api.h"
#include "rendezvous.h"

namespace orthant::nccl {

// Returns when every rank is there. A world of one rank meets nobody and needs no address.
// Errors: Error, as Rendezvous.
std::unique_ptr<Communicator> make_nccl_communicator(std::shared_ptr<NcclApi> api, const RendezvousConfig& config);

}  // namespace orthant::nccl
