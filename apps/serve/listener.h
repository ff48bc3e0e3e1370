// Listener: the socket that a server's clients connect to.
#pragma once

#include <atomic>
#include <string>

namespace orthant {

// Thread safety: accept() by any number of threads, end() by any other.
class Listener {
 public:
  // port 0: a free one. Errors: Error for an address that is not this machine's, or is taken.
  Listener(const std::string& host, int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // The socket of the next client, which the caller closes; -1: nothing can be accepted any more.
  int accept() const;
  // Ends accept(), now and later.
  void end();
  bool ended() const { return ended_; }

 private:
  int socket_ = -1, port_ = -1;
  std::atomic<bool> ended_ = false;
};

}  // namespace orthant
