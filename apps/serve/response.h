// An ApiResponse as HTTP/1.1 writes it.
#pragma once

#include <string_view>

#include "apps/serve/api.h"
#include "apps/serve/client_socket.h"

namespace orthant {

// Of HTTP/1.1, before the head of an answer: a client skips it, whether it has asked for it or not. One of HTTP/1.0
// would not.
constexpr std::string_view interim = "HTTP/1.1 100 Continue\r\n\r\n";

// with_body: false for what is asked by HEAD. in_chunks: a stream's events, for a client that knows chunks; else the
// end of the connection ends them. A client that has gone ends it early.
void write_response(ClientSocket& client, ApiResponse response, bool with_body = true, bool in_chunks = true);

}  // namespace orthant
