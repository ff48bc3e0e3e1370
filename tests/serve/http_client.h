// A client of HTTP that can misbehave: bytes over a socket, as they are given.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace orthant::serve_test {

class Connection {
 public:
  // seconds: that a read waits.
  explicit Connection(int port, int seconds = 120) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval patience{.tv_sec = seconds, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    open_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  ~Connection() { ::close(socket_); }
  Connection(Connection&& other) noexcept : socket_(std::exchange(other.socket_, -1)), open_(other.open_) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool open() const { return open_; }
  // False: the server does not take it.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void sends_no_more() { ::shutdown(socket_, SHUT_WR); }
  // Something can be read now.
  bool anything() const {
    char some;
    return ::recv(socket_, &some, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  }
  // Up to the end, or to `until`.
  std::string read(std::string_view until = {}) {
    std::string all;
    char some[4096];
    while (until.empty() || all.find(until) == std::string::npos) {
      const ssize_t got = ::recv(socket_, some, sizeof some, 0);
      if (got <= 0) {
        break;
      }
      all.append(some, static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  int socket_;
  bool open_ = false;
};

struct Reply {
  int status = 0;
  std::string head, body;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// Status, head and body of an answer; chunks are joined.
inline Reply parse_reply(const std::string& text) {
  Reply reply;
  const std::size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.size() < 12) {
    return reply;
  }
  reply.status = std::atoi(text.c_str() + 9);
  reply.head = text.substr(0, end);
  std::string_view rest = std::string_view(text).substr(end + 4);
  if (reply.head.find("chunked") == std::string::npos) {
    reply.body = rest;
    return reply;
  }
  while (!rest.empty()) {
    const std::size_t line = rest.find("\r\n");
    const std::size_t size = std::strtoul(std::string(rest.substr(0, line)).c_str(), nullptr, 16);
    if (line == std::string_view::npos || size == 0 || line + 2 + size > rest.size()) {
      break;
    }
    reply.body += rest.substr(line + 2, size);
    rest.remove_prefix(std::min(rest.size(), line + 4 + size));
  }
  return reply;
}

inline std::string request_text(const std::string& method, const std::string& path, const std::string& body = "",
                                const std::string& headers = "Content-Type: application/json\r\n") {
  return method + " " + path + " HTTP/1.1\r\nHost: here\r\n" + headers +
         (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" + body;
}

}  // namespace orthant::serve_test
