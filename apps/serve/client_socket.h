// ClientSocket: the connection of a client that may send too much, too slowly, or nothing, and may go at any time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "apps/serve/request_head.h"

namespace orthant {

// Thread safety: none. It does not own the socket.
class ClientSocket {
 public:
  using Clock = std::chrono::steady_clock;

  // patience: for a client that sends nothing, or reads nothing.
  ClientSocket(int socket, std::chrono::milliseconds patience) : socket_(socket), patience_(patience) {}

  int number() const { return socket_; }
  // The request's head, within one patience; read() goes on after it. nullopt: the client has sent nothing, or ended()
  // says that nobody answers any more. Errors: ApiError of status 408, and read_head's.
  std::optional<RequestHead> receive_head(const std::function<bool()>& ended);
  // What comes after the head comes until `deadline`, and is no more than so many bytes.
  void set_limits(Clock::time_point deadline, std::size_t bytes) {
    deadline_ = deadline;
    bytes_left_ = bytes;
  }
  // As recv(); -1 too where nothing comes in time, or more than may come.
  ssize_t read(char* bytes, std::size_t count);
  // As send(), after waiting for a place to write to; -1 where there is none in time.
  ssize_t write(const char* bytes, std::size_t count);
  // All of it. False: the client is gone, or reads nothing in time.
  bool write_all(std::string_view bytes);
  // write() has sent something.
  bool answered() const { return answered_; }
  // Of what the head announces not all was read, or it cannot be told, or more is there.
  bool has_unread() const;
  // False: the time has passed without any of poll()'s events.
  bool wait_for(short events, Clock::time_point until) const;
  // Says that nothing more will be written, and reads for a second what the client still sends: a socket that is
  // closed before that takes with it what the client has not read.
  void end_gently();

 private:
  bool receive();

  const int socket_;
  const std::chrono::milliseconds patience_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::size_t bytes_left_ = std::numeric_limits<std::size_t>::max();
  std::size_t announced_ = length_unknown;  // bytes of the body that read() has not given yet
  std::string received_;                    // and not read yet, from read_ on
  std::size_t read_ = 0;
  bool answered_ = false;
};

// It sends nothing more (shutdown), whether it has gone or not; -1: a client that is taken to be there.
bool sends_no_more(int socket);

// Whether a client still waits for its answer. One that sends nothing more may well wait: only what it answers to
// something that is written to it tells it from one that has closed its socket. So something is written every second:
// one that has read the first may leave after it. Thread safety: none.
class ClientPresence {
 public:
  // probe: what a client ignores that waits for the head of its answer; empty: nothing is written, and whoever sends
  // nothing more is taken to have gone.
  ClientPresence(int socket, std::string_view probe) : socket_(socket), probe_(probe) {}
  bool gone();

 private:
  int socket_;
  std::string_view probe_;
  ClientSocket::Clock::time_point next_probe_ = ClientSocket::Clock::time_point::min();
};

}  // namespace orthant
