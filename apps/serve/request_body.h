// The body of a request, bounded in memory and in what is read of it.
#pragma once

#include <cstddef>
#include <string>

#include "apps/serve/client_socket.h"

namespace orthant {

constexpr std::size_t longest_body = 4 << 20;  // bytes
// Bytes of a body as it is sent, with the sizes of its chunks.
constexpr std::size_t longest_sent = 2 * longest_body;

// One that is too long is read to its end all the same, within the socket's limits: a connection that is closed on a
// client that still sends would take the answer with it. length: RequestHead::body. Errors: ApiError of status 413 for
// more than longest_body, 400 for one that does not come to its end or is not made of chunks as it says.
std::string read_body(ClientSocket& client, std::size_t length);

}  // namespace orthant
