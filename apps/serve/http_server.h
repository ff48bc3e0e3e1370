// HttpServer: an Api over HTTP/1.1 (RFC 9112).
//
// A connection carries one request: what a client did not send to its end, or sent too much of, can then not be taken
// for another one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "apps/serve/api.h"

namespace orthant {

class HttpServer {
 public:
  // lost: called by a thread of its own when nothing can be accepted any more although nobody has asked for the end.
  // It may not call this. The Api outlives this.
  HttpServer(Api& api, std::function<void()> lost);
  ~HttpServer();  // as stop(0)

  // Answers in threads of its own, from now on. port 0: a free one. Returns the port. Errors: Error for an address
  // that is not this machine's, or is taken.
  int start(const std::string& host, int port);
  // REQUIRES: start(). Accepts nothing more; connections have `grace` to end, then they are cut.
  void stop(std::chrono::milliseconds grace);

  // Whether only programs of this machine reach the address.
  static bool is_loopback(const std::string& host);

 private:
  class Connections;
  Api& api_;
  std::function<void()> lost_;
  std::unique_ptr<Connections> connections_;
};

}  // namespace orthant
