#include "address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include <orthant/error.h>
#include <orthant/handshake.h>

namespace orthant::nccl {
namespace {

constexpr std::string_view unix_prefix = "unix:@";

struct Endpoint {
  sockaddr_storage where{};
  socklen_t bytes = 0;
};

// A name of Linux's abstract space: no file, gone with its owner.
Endpoint abstract_name(const std::string& address) {
  const std::string name = address.substr(unix_prefix.size());
  sockaddr_un there{};
  there.sun_family = AF_UNIX;
  require(!name.empty() && name.size() < sizeof(there.sun_path),
          "'{}': expected unix:@ and a name of 1 to {} characters", address, sizeof(there.sun_path) - 1);
  std::memcpy(there.sun_path + 1, name.data(), name.size());
  Endpoint found;
  found.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  std::memcpy(&found.where, &there, sizeof(there));
  return found;
}

std::vector<Endpoint> resolve(const std::string& address) {
  if (address.starts_with(unix_prefix)) {
    return {abstract_name(address)};
  }
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  require(
      !host.empty() && !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos,
      "'{}': expected host:port, [ipv6]:port or unix:@name", address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  require(code == 0 && list != nullptr, "cannot resolve '{}': {}", host, gai_strerror(code));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  std::vector<Endpoint> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Endpoint& endpoint = found.emplace_back();
    endpoint.bytes = entry->ai_addrlen;
    std::memcpy(&endpoint.where, entry->ai_addr, entry->ai_addrlen);
  }
  return found;
}

const sockaddr* pointer(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr*>(&endpoint.where);
}

Socket open_socket(const Endpoint& endpoint) {
  Socket socket(::socket(endpoint.where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) {
    fail("cannot make a socket: {}", std::strerror(errno));
  }
  return socket;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    descriptor_ = -1;
  }
}

Socket listen_at(const std::string& address) {
  int reason = 0;
  for (const Endpoint& endpoint : resolve(address)) {
    Socket socket = open_socket(endpoint);
    const int yes = 1;  // a run that starts again must not wait for the kernel to forget the last one
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(socket.get(), pointer(endpoint), endpoint.bytes) == 0 && listen(socket.get(), 1024) == 0) {
      return socket;
    }
    reason = errno;
    if (reason != EADDRNOTAVAIL && reason != EAFNOSUPPORT) {
      break;
    }
  }
  fail("rank 0 cannot listen at {}: {}. {}", address, std::strerror(reason),
       reason == EADDRNOTAVAIL ? "No network of this machine has that address: set ORTHANT_RENDEZVOUS=host:port to one "
                                 "that has, or for rank 0 alone to 0.0.0.0:port, every network"
                               : "Another run on this machine? Give each its own port: ORTHANT_RENDEZVOUS=host:port");
}

std::string note_of_reach(const Socket& listener) {
  sockaddr_storage where{};
  socklen_t bytes = sizeof(where);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&where), &bytes);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&where);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&where);
  const bool loopback = (where.ss_family == AF_INET && ntohl(v4->sin_addr.s_addr) >> 24 == 127) ||
                        (where.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr));
  return loopback
             ? ". That host is an address of rank 0's machine alone there (127.x or ::1; see its /etc/hosts), which "
               "other machines do not reach: for those set ORTHANT_RENDEZVOUS=host:port to one that they do"
             : "";
}

Socket connect_to(const std::string& address) {
  int reason = 0;
  for (const Endpoint& endpoint : resolve(address)) {
    Socket socket = open_socket(endpoint);
    if (connect(socket.get(), pointer(endpoint), endpoint.bytes) == 0) {
      require(!is_of_another_user(socket.get()), "a process of another user listens there");
      return socket;
    }
    reason = errno;
  }
  fail("{}", std::strerror(reason));
}

}  // namespace orthant::nccl
