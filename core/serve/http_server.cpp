#include "core/serve/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/serve/api_error.h"
#include "core/serve/client_socket.h"

namespace orthant {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t longest_body = 4 << 20;  // bytes
// Bytes of a body as it is sent, with its chunks' sizes. The library keeps a line of any length.
constexpr std::size_t longest_sent = 2 * longest_body;
constexpr std::size_t longest_path = 1000;  // bytes; the library matches it by a recursive regular expression
// Connections that are served at once, each by a thread; others wait. More than completions may hold: whoever asks
// whether the server is there gets an answer, and so does a completion too many.
constexpr std::size_t connections = most_requests + 16;
constexpr int most_not_accepted = 511;  // connections; the system may take fewer
constexpr auto client_patience = 10s;   // for a client that sends nothing, or reads nothing; and for a whole head
constexpr auto longest_sending = 60s;   // of a body
// Bytes of a stream that the system keeps for a client: enough that nothing waits, few enough that one that does not
// read is noticed.
constexpr int kept_for_client = 256 << 10;

using Any = sockaddr_storage;

// The port of either kind of address; -1: another kind.
int port_of(const Any& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port) : -1;
}

std::string text_of(const Any& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  }
  return text;
}

// The library tells a handler who its client is, and not by which socket. So the sockets that are connected to `port`
// of this process are looked up among its files. visit(socket, address of the client): false ends the search.
template <class Visit>
void visit_connections(int port, Visit&& visit) {
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    const int socket = std::atoi(it->path().filename().c_str());
    Any local{}, remote{};
    socklen_t local_size = sizeof local, remote_size = sizeof remote;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_size) == 0 && port_of(local) == port &&
        getpeername(socket, reinterpret_cast<sockaddr*>(&remote), &remote_size) == 0 && !visit(socket, remote)) {
      return;
    }
  }
}

// -1: not found, and then the client is taken to be there.
int socket_of(const httplib::Request& request, int port) {
  int found = -1;
  visit_connections(port, [&](int socket, const Any& remote) {
    if (port_of(remote) == request.remote_port && text_of(remote) == request.remote_addr) {
      found = socket;
    }
    return found < 0;
  });
  return found;
}

// A client of HTTP/1.1 skips it before the head of its answer, whether it has asked for it or not. One of HTTP/1.0
// would not.
constexpr std::string_view interim = "HTTP/1.1 100 Continue\r\n\r\n";
// Clients of event streams skip it.
constexpr std::string_view comment = ":\n\n";

ApiRequest api_request(const httplib::Request& request, int socket) {
  ClientPresence client(socket, request.version == "HTTP/1.1" ? interim : "");
  return {.method = request.method,
          .path = request.path,
          .authorization = request.get_header_value("Authorization"),
          .content_type = request.get_header_value("Content-Type"),
          .body = {},
          .gone = [client]() mutable { return client.gone(); }};
}

// socket: the client's; -1: not known, or of no use.
void put_response(ApiResponse made, httplib::Response& response, int socket = -1) {
  response.status = made.status;
  for (const auto& [name, value] : made.headers) {
    response.set_header(name, value);
  }
  if (!made.next) {
    response.set_content(made.body, "application/json");
    return;
  }
  response.set_chunked_content_provider(
      "text/event-stream", [next = std::move(made.next), socket](std::size_t, httplib::DataSink& sink) {
        const std::optional<std::string> events = next();
        if (!events.has_value()) {
          sink.done();
          return true;
        }
        // Nothing to tell: one that sends nothing more is asked whether it is there.
        const std::string_view told = !events->empty() ? *events : sends_no_more(socket) ? comment : "";
        return told.empty() || sink.write(told.data(), told.size());
      });
}

// A reason for what the library refuses by itself.
const char* reason_of(int status) {
  switch (status) {
    case 400: return "this is no HTTP request that can be read to its end";
    case 413: return "the request's body is longer than 4 MiB, or cannot be read";
    case 414: return "the request's path is too long";
    default: return "the request cannot be answered";
  }
}

// The library shuts its threads down when it stops to accept, and waits for them then.
class Threads final : public httplib::ThreadPool {
 public:
  explicit Threads(std::function<void()> on_shutdown) : ThreadPool(connections), on_shutdown_(std::move(on_shutdown)) {}
  void shutdown() override {
    on_shutdown_();
    ThreadPool::shutdown();
  }

 private:
  std::function<void()> on_shutdown_;
};

// A client's connection as the library reads and writes it.
class ClientStream final : public httplib::Stream {
 public:
  explicit ClientStream(ClientSocket& client) : client_(client) {}
  bool is_readable() const override { return true; }  // or read() says that it is not
  bool is_writable() const override { return client_.wait_for(POLLOUT, ClientSocket::Clock::now() + client_patience); }
  ssize_t read(char* bytes, std::size_t count) override { return client_.read(bytes, count); }
  ssize_t write(const char* bytes, std::size_t count) override { return client_.write(bytes, count); }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { address(getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const override { address(getsockname, ip, port); }
  socket_t socket() const override { return client_.number(); }

 private:
  void address(int (*name)(int, sockaddr*, socklen_t*), std::string& ip, int& port) const {
    Any found{};
    socklen_t size = sizeof found;
    if (name(client_.number(), reinterpret_cast<sockaddr*>(&found), &size) == 0) {
      ip = text_of(found);
      port = port_of(found);
    }
  }
  ClientSocket& client_;
};

// The library reads heads of any size for any time, and takes the first of two lengths of a body. So it is given only
// those that were checked.
class Server final : public httplib::Server {
 public:
  // The library lets five wait to be accepted: what comes beside them tries again after seconds.
  void let_many_wait() { ::listen(svr_sock_, most_not_accepted); }

 private:
  bool process_and_close_socket(socket_t socket) override {
    ClientSocket client(socket, client_patience);
    ClientStream stream(client);
    bool answered = false;
    try {
      answered = answer(client, stream);
    } catch (...) {  // of the memory for a refusal, say; what leaves a thread of the library ends the process
    }
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return answered;
  }

  bool answer(ClientSocket& client, ClientStream& stream) {
    bool answered = false;
    try {
      if (!client.receive_head([&] { return svr_sock_ == INVALID_SOCKET; })) {
        return false;
      }
      client.set_limits(ClientSocket::Clock::now() + longest_sending, longest_sent);
      bool closes = true;
      answered = process_request(stream, closes, closes, nullptr);
    } catch (const ApiError& refused) {
      refuse(stream, refused);
    } catch (const std::exception&) {  // the library guards only its handlers: memory for a head may be missing
      if (client.answered()) {
        return false;
      }
      refuse(stream, {500, "the server failed to read the request"});
    }
    if (client.has_unread()) {
      client.end_gently();
    }
    return answered;
  }

  static void refuse(ClientStream& stream, const ApiError& refused) {
    const ApiResponse response = Api::error(refused);
    stream.write_format(
        "HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: "
        "close\r\n\r\n",
        response.status, response.body.size());
    stream.httplib::Stream::write(response.body);
  }
};

}  // namespace

class HttpServer::Library {
 public:
  Library(Api& api, std::function<void()> lost) : api_(api), lost_(std::move(lost)) {
    using httplib::Request, httplib::Response;
    server_.new_task_queue = [this] {
      return new Threads([this] {
        if (!stopping_) {
          ended_itself_ = true;
          lost_();
        }
      });
    };
    server_.set_keep_alive_max_count(1);
    server_.set_payload_max_length(longest_body);
    server_.set_tcp_nodelay(true);
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // and no second server on the same port
      setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kept_for_client, sizeof kept_for_client);
    });
    server_.set_pre_routing_handler([this](const Request& request, Response& response) {
      return route_without_body(request, response) ? httplib::Server::HandlerResponse::Handled
                                                   : httplib::Server::HandlerResponse::Unhandled;
    });
    const auto with_body = [this](const Request& request, Response& response, const httplib::ContentReader& reader) {
      route_with_body(request, response, reader);
    };
    // Any path: '.' would not match the end of a line, and the library itself keeps a body that nobody takes.
    constexpr const char* any = "[\\s\\S]*";
    server_.Post(any, with_body);
    server_.Put(any, with_body);
    server_.Patch(any, with_body);
    server_.set_error_handler([](const Request&, Response& response) {
      if (response.body.empty()) {
        response.set_content(error_body({response.status, reason_of(response.status)}), "application/json");
      }
    });
    server_.set_exception_handler([](const Request&, Response& response, std::exception_ptr) {
      put_response(Api::error({500, "the server failed to answer"}), response);
    });
  }

  int start(const std::string& host, int port) {
    errno = 0;
    port_ = port == 0 ? server_.bind_to_any_port(host) : server_.bind_to_port(host, port) ? port : -1;
    if (port_ <= 0) {
      const std::string why = errno != 0 ? std::strerror(errno) : "no such address";
      fail("cannot listen on {}:{}: {}. Give a free port (--port, 0 for any) and an address of this machine", host,
           port, why);
    }
    server_.let_many_wait();
    std::promise<void> ended;
    ended_ = ended.get_future();
    thread_ = std::thread([this, ended = std::move(ended)]() mutable {
      server_.listen_after_bind();
      ended.set_value();
    });
    return port_;
  }

  void stop(std::chrono::milliseconds grace) {
    if (!thread_.joinable()) {
      return;
    }
    // A server that does not listen yet would not see the end.
    while (!server_.is_running() && ended_.wait_for(1ms) != std::future_status::ready) {
    }
    stopping_ = true;
    if (!ended_itself_) {  // else the library has closed its socket, whose number may be another file's by now
      server_.stop();
    }
    if (ended_.wait_for(grace) != std::future_status::ready) {
      visit_connections(port_, [](int socket, const Any&) {
        ::shutdown(socket, SHUT_RDWR);
        return true;
      });
    }
    thread_.join();
  }

 private:
  // What has no body that matters, or is refused whatever it is.
  bool route_without_body(const httplib::Request& request, httplib::Response& response) {
    if (request.path.size() > longest_path) {
      put_response(Api::error({414, reason_of(414)}), response);
      return true;
    }
    const bool may_have_body = request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
    if (may_have_body && (request.has_header("Content-Length") || request.has_header("Transfer-Encoding"))) {
      return false;
    }
    const int socket = socket_of(request, port_);
    put_response(api_.respond(api_request(request, socket)), response, socket);
    return true;
  }

  // The body is read even where it does not matter: a connection that is closed on a client that still sends would
  // take the answer with it.
  void route_with_body(const httplib::Request& request, httplib::Response& response,
                       const httplib::ContentReader& reader) {
    if (request.is_multipart_form_data()) {
      put_response(Api::error({415, "the body's Content-Type is a form's: expected application/json"}), response);
      return;
    }
    const int socket = socket_of(request, port_);
    ApiRequest asked = api_request(request, socket);
    bool fits = true;
    const bool whole = reader([&](const char* bytes, std::size_t count) {
      fits = fits && asked.body.size() + count <= longest_body;  // also of what it is inflated to
      if (fits) {
        asked.body.append(bytes, count);
      }
      return fits;
    });
    if (!fits) {
      put_response(Api::error({413, reason_of(413)}), response);
    } else if (!whole) {
      const int status = response.status >= 400 ? response.status : 400;
      put_response(Api::error({status, reason_of(status)}), response);
    } else {
      put_response(api_.respond(asked), response, socket);
    }
  }

  Api& api_;
  std::function<void()> lost_;
  std::atomic<bool> stopping_ = false, ended_itself_ = false;
  Server server_;
  int port_ = -1;
  std::thread thread_;
  std::future<void> ended_;
};

HttpServer::HttpServer(Api& api, std::function<void()> lost)
    : library_(std::make_unique<Library>(api, std::move(lost))) {}

HttpServer::~HttpServer() {
  stop(0ms);
}

int HttpServer::start(const std::string& host, int port) {
  return library_->start(host, port);
}

void HttpServer::stop(std::chrono::milliseconds grace) {
  library_->stop(grace);
}

bool HttpServer::is_loopback(const std::string& host) {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  return host == "localhost" || host == "::1";
}

}  // namespace orthant
