#include "apps/serve/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <orthant/error.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace orthant {
namespace {

using namespace std::chrono_literals;

constexpr int most_not_accepted = 511;  // connections that wait; the system may take fewer
// Bytes of a stream that the system keeps for a client: enough that nothing waits, few enough that one that does not
// read is noticed.
constexpr int kept_for_client = 256 << 10;

void set_option(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof value);
}

// -1, with errno.
int listen_on(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (socket < 0) {
    return -1;
  }
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);  // and no second server on the same port
  set_option(socket, SOL_SOCKET, SO_SNDBUF, kept_for_client);
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, most_not_accepted) == 0) {
    return socket;
  }
  const int why = errno;
  ::close(socket);
  errno = why;
  return -1;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

Listener::Listener(const std::string& host, int port) {
  addrinfo asked{};
  asked.ai_socktype = SOCK_STREAM;
  asked.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &asked, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, [](addrinfo* list) {
    if (list != nullptr) {
      freeaddrinfo(list);
    }
  });
  errno = 0;
  for (const addrinfo* address = unknown == 0 ? found : nullptr; address != nullptr && socket_ < 0;
       address = address->ai_next) {
    socket_ = listen_on(*address);
  }
  if (socket_ < 0) {
    const std::string why = unknown != 0 ? gai_strerror(unknown) : std::strerror(errno);
    fail("cannot listen on {}:{}: {}. Give a free port (--port, 0 for any) and an address of this machine", host, port,
         why);
  }
  port_ = port_of(socket_);
}

Listener::~Listener() {
  ::close(socket_);
}

int Listener::accept() const {
  while (!ended_) {
    const int client = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) {
      set_option(client, IPPROTO_TCP, TCP_NODELAY, 1);
      return client;
    }
    switch (errno) {
      case EBADF:
      case EINVAL:
      case ENOTSOCK:
      case EOPNOTSUPP: return -1;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM: std::this_thread::sleep_for(10ms); break;  // those under way give something back
      default: break;                                         // of a client that has gone, or its network
    }
  }
  return -1;
}

void Listener::end() {
  ended_ = true;
  ::shutdown(socket_, SHUT_RDWR);
}

}  // namespace orthant
