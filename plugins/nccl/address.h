// Where rank 0 waits for the others: "host:port", "[ipv6]:port", or "unix:@name" on one machine.
#pragma once

#include <string>

#include "plugins/nccl/socket.h"

namespace orthant::nccl {

// Listens there. A host name is not bound to: a machine may know itself by another address than its peers do, so it
// listens on every interface, except where the host is loopback. Errors: Error naming the address.
Socket listen_at(const std::string& address);

// One attempt. Errors: Error with the system's reason (nobody listens there yet, an unknown host).
Socket connect_to(const std::string& address);

}  // namespace orthant::nccl
