// Where rank 0 waits for the others: "host:port", "[ipv6]:port", or "unix:@name" on one machine.
#pragma once

#include <string>

#include "socket.h"

namespace orthant::nccl {

// Listens there and nowhere else: on the address that the host name has on this machine. Errors: Error naming the
// address.
Socket listen_at(const std::string& address);

// For the message about ranks that did not come: that only this machine reaches the address, where this is so.
std::string note_of_reach(const Socket& listener);

// One attempt at each address that the host name has here. Errors: Error with the system's reason (nobody listens there
// yet, an unknown host), or that another user's process does (unix:).
Socket connect_to(const std::string& address);

}  // namespace orthant::nccl
