#include "apps/serve/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/serve/api_error.h"
#include "apps/serve/client_socket.h"
#include "apps/serve/listener.h"
#include "apps/serve/request_body.h"
#include "apps/serve/response.h"

namespace orthant {
namespace {

using namespace std::chrono_literals;

// Connections that are served at once, each by a thread; others wait. More than completions may hold: whoever asks
// whether the server is there gets an answer, and so does a completion too many.
constexpr std::size_t connections = most_requests + 16;
constexpr auto client_patience = 10s;  // for a client that sends nothing, or reads nothing; and for a whole head
constexpr auto longest_sending = 60s;  // of a body

}  // namespace

class HttpServer::Connections {
 public:
  Connections(Api& api, std::function<void()> lost, const std::string& host, int port)
      : api_(api), lost_(std::move(lost)), listener_(host, port) {
    try {
      while (threads_.size() < connections) {
        threads_.emplace_back([this] { serve(); });
      }
    } catch (...) {
      stop(0ms);
      throw;
    }
  }
  ~Connections() { stop(0ms); }

  int port() const { return listener_.port(); }

  void stop(std::chrono::milliseconds grace) {
    listener_.end();
    {
      std::unique_lock lock(mutex_);
      if (!none_open_.wait_for(lock, grace, [this] { return open_.empty(); })) {
        for (const int socket : open_) {
          ::shutdown(socket, SHUT_RDWR);
        }
      }
    }
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

 private:
  void serve() {
    while (true) {
      const int socket = listener_.accept();
      if (socket < 0) {
        break;
      }
      set_open(socket, true);
      try {
        serve(socket);
      } catch (...) {  // of the memory for a refusal, say
      }
      set_open(socket, false);
    }
    if (!listener_.ended() && !said_lost_.exchange(true)) {
      lost_();
    }
  }

  void serve(int socket) {
    ClientSocket client(socket, client_patience);
    try {
      answer(client);
    } catch (const ApiError& refused) {
      write_response(client, Api::error(refused));
    } catch (const std::exception&) {  // memory for a head may be missing
      if (client.answered()) {
        return;
      }
      write_response(client, Api::error({500, "the server failed to answer"}));
    }
    if (client.has_unread()) {
      client.end_gently();
    }
  }

  void answer(ClientSocket& client) {
    std::optional<RequestHead> head = client.receive_head([this] { return listener_.ended(); });
    if (!head.has_value()) {
      return;
    }
    client.set_limits(ClientSocket::Clock::now() + longest_sending, longest_sent);
    std::string body;
    if (head->method == "POST" || head->method == "PUT" || head->method == "PATCH") {
      if (head->expects_continue && !head->of_http_1_0) {
        client.write_all(interim);
      }
      body = read_body(client, head->body);
    }
    ClientPresence presence(client.number(), head->of_http_1_0 ? "" : interim);
    ApiResponse response = api_.respond({.method = head->method,
                                         .path = std::move(head->path),
                                         .authorization = std::move(head->authorization),
                                         .content_type = std::move(head->content_type),
                                         .body = std::move(body),
                                         .gone = [&presence] { return presence.gone(); }});
    write_response(client, std::move(response), head->method != "HEAD", !head->of_http_1_0);
  }

  void set_open(int socket, bool open) {
    const std::scoped_lock lock(mutex_);
    if (open) {
      open_.insert(socket);
      return;
    }
    open_.erase(socket);
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    none_open_.notify_all();
  }

  Api& api_;
  std::function<void()> lost_;
  Listener listener_;
  std::atomic<bool> said_lost_ = false;
  std::mutex mutex_;
  std::condition_variable none_open_;
  std::set<int> open_;  // sockets of clients that are being served
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(Api& api, std::function<void()> lost) : api_(api), lost_(std::move(lost)) {}

HttpServer::~HttpServer() = default;

int HttpServer::start(const std::string& host, int port) {
  connections_ = std::make_unique<Connections>(api_, lost_, host, port);
  return connections_->port();
}

void HttpServer::stop(std::chrono::milliseconds grace) {
  connections_->stop(grace);
}

bool HttpServer::is_loopback(const std::string& host) {
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return ntohl(v4.s_addr) >> 24 == 127;
  }
  return host == "localhost" || host == "::1";
}

}  // namespace orthant
