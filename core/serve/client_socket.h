// ClientSocket: the connection of a client that may send too much, too slowly, or nothing, and may go at any time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace orthant {

// Thread safety: none. It does not own the socket.
class ClientSocket {
 public:
  using Clock = std::chrono::steady_clock;

  // patience: for a client that sends nothing, or reads nothing.
  ClientSocket(int socket, std::chrono::milliseconds patience) : socket_(socket), patience_(patience) {}

  int number() const { return socket_; }
  // The request's head, whole and checked (request_head.h), within one patience; read() begins with it. False: the
  // client has sent nothing, or ended() says that nobody answers any more. Errors: ApiError of status 400, 408, 414
  // or 431.
  bool receive_head(const std::function<bool()>& ended);
  // What comes after the head comes until then.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }
  // As recv(); -1 too where nothing comes in time.
  ssize_t read(char* bytes, std::size_t count);
  // As send(), after waiting for a place to write to; -1 where there is none in time.
  ssize_t write(const char* bytes, std::size_t count);
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
  std::string received_;  // and not read yet, from read_ on
  std::size_t read_ = 0;
};

// It sends nothing more (shutdown), whether it has gone or not; -1: a client that is taken to be there.
bool sends_no_more(int socket);

// Whether a client still waits for its answer. One that sends nothing more may well wait: only what it answers to
// something that is written to it tells it from one that has closed its socket. So something is written, once.
// Thread safety: none.
class ClientPresence {
 public:
  // probe: what a client ignores that waits for the head of its answer; empty: nothing is written, and whoever sends
  // nothing more is taken to have gone.
  ClientPresence(int socket, std::string_view probe) : socket_(socket), probe_(probe) {}
  bool gone();

 private:
  int socket_;
  std::string_view probe_;
  bool probed_ = false;
};

}  // namespace orthant
