#include "apps/serve/client_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "apps/serve/api_error.h"

namespace orthant {
namespace {

using namespace std::chrono_literals;

// The events of `asked`, and POLLHUP and POLLERR, which are there now.
short events_of(int socket, short asked) {
  pollfd state{.fd = socket, .events = asked, .revents = 0};
  return ::poll(&state, 1, 0) > 0 ? state.revents : short{0};
}

}  // namespace

bool ClientSocket::wait_for(short events, Clock::time_point until) const {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd state{.fd = socket_, .events = events, .revents = 0};
    const int ready = ::poll(&state, 1, static_cast<int>(std::max(0ms, left).count()));
    if (ready >= 0 || errno != EINTR) {
      return ready > 0;
    }
  }
}

// False: nothing, and nothing will come.
bool ClientSocket::receive() {
  char some[4096];
  ssize_t got;
  do {
    got = ::recv(socket_, some, sizeof some, 0);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    return false;
  }
  received_.append(some, static_cast<std::size_t>(got));
  return true;
}

std::optional<RequestHead> ClientSocket::receive_head(const std::function<bool()>& ended) {
  const Clock::time_point deadline = Clock::now() + patience_;
  std::size_t head = 0;
  while (head == 0) {
    if (!wait_for(POLLIN, std::min(deadline, Clock::now() + 100ms))) {
      if (ended()) {
        return std::nullopt;
      }
      if (Clock::now() < deadline) {
        continue;
      }
      if (received_.empty()) {
        return std::nullopt;
      }
      throw ApiError(408, fmt::format("the request's head did not come to its end within {} s",
                                      std::chrono::ceil<std::chrono::seconds>(patience_).count()));
    }
    if (!receive()) {
      if (received_.empty()) {
        return std::nullopt;
      }
      throw ApiError(400, "the request's head ends before its empty line");
    }
    head = size_of_head(received_);
  }
  RequestHead request = read_head(std::string_view(received_).substr(0, head));
  read_ = head;
  announced_ = request.body;
  return request;
}

ssize_t ClientSocket::read(char* bytes, std::size_t count) {
  if (read_ == received_.size()) {
    received_.clear();
    read_ = 0;
    const Clock::time_point now = Clock::now();
    if (now >= deadline_ || !wait_for(POLLIN, std::min(deadline_, now + patience_))) {
      return -1;
    }
    if (!receive()) {
      return 0;
    }
    if (received_.size() > bytes_left_) {
      bytes_left_ = 0;
      received_.clear();
      return -1;
    }
    bytes_left_ -= received_.size();
  }
  const std::size_t taken = std::min(count, received_.size() - read_);
  std::memcpy(bytes, received_.data() + read_, taken);
  read_ += taken;
  if (announced_ != length_unknown) {
    announced_ -= std::min(announced_, taken);
  }
  return static_cast<ssize_t>(taken);
}

ssize_t ClientSocket::write(const char* bytes, std::size_t count) {
  if (!wait_for(POLLOUT, Clock::now() + patience_)) {
    errno = ETIMEDOUT;
    return -1;
  }
  ssize_t sent;
  do {
    sent = ::send(socket_, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  answered_ = answered_ || sent > 0;
  return sent;
}

bool ClientSocket::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = write(bytes.data(), bytes.size());
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      continue;  // write() waits for a place
    }
    if (sent <= 0) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool ClientSocket::has_unread() const {
  return announced_ > 0 || events_of(socket_, POLLIN) != 0;
}

void ClientSocket::end_gently() {
  ::shutdown(socket_, SHUT_WR);
  const Clock::time_point deadline = Clock::now() + 1s;
  while (Clock::now() < deadline && wait_for(POLLIN, deadline) && receive()) {
    received_.clear();
  }
}

bool sends_no_more(int socket) {
  return socket >= 0 && (events_of(socket, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool ClientPresence::gone() {
  if (!sends_no_more(socket_)) {
    return false;
  }
  if (probe_.empty() || (events_of(socket_, 0) & (POLLHUP | POLLERR)) != 0) {
    return true;
  }
  const ClientSocket::Clock::time_point now = ClientSocket::Clock::now();
  if (now < next_probe_) {
    return false;
  }
  next_probe_ = now + 1s;
  // One that is not taken whole: hours of them lie there unread.
  return ::send(socket_, probe_.data(), probe_.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
         static_cast<ssize_t>(probe_.size());
}

}  // namespace orthant
