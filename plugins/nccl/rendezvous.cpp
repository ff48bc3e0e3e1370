#include "rendezvous.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include <orthant/error.h>

#include "address.h"

namespace orthant::nccl {
namespace {

using Clock = std::chrono::steady_clock;

// The hub explains a rank that does not come; whoever waits for it gives it this much longer.
constexpr double grace_seconds = 5;

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// A machine that loses its power closes no connection: TCP itself asks every few seconds. Without effect on unix:.
void keep_alive(int socket) {
  const int yes = 1, seconds_idle = 5, seconds_between = 2, probes = 5, milliseconds_unacknowledged = 15000;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &seconds_idle, sizeof(seconds_idle));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &seconds_between, sizeof(seconds_between));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds_unacknowledged, sizeof(milliseconds_unacknowledged));
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

}  // namespace

Rendezvous::Rendezvous(const RendezvousConfig& config) : config_(config) {
  require(config.rank >= 0 && config.rank < config.world_size, "rank {} is not in a world of {} ranks", config.rank,
          config.world_size);
  config.rank == 0 ? host() : connect();
  send_frame({FrameType::hello, config.rank, hello_text(config.world_size, config.job)});
  await_welcome();
  if (config.rank == 0 && !config.secret.file.empty()) {
    std::error_code ignored;  // nobody else needs it from now on
    std::filesystem::remove(config.secret.file, ignored);
  }
}

void Rendezvous::host() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    orthant::fail("cannot make a socket pair: {}", std::strerror(errno));
  }
  socket_ = Socket(ends[0]);
  Socket other(ends[1]);
  const std::optional<std::string> secret = read_secret(config_.secret);
  require(secret.has_value(), "rank 0 finds no secret of this start in {}", config_.secret.file.string());
  hub_ = std::make_unique<Hub>(listen_at(config_.address), std::move(other),
                               HubOptions{.address = config_.address,
                                          .job = config_.job,
                                          .secret = *secret,
                                          .world_size = config_.world_size,
                                          .timeout_seconds = config_.timeout_seconds});
}

// Rank 0 may come later, and until then an earlier start of this run may be there: its rank 0, its secret in a file.
void Rendezvous::connect() {
  const Clock::time_point end = Clock::now() + seconds(config_.timeout_seconds);
  for (;;) {
    std::string problem;
    if (const std::optional<std::string> secret = read_secret(config_.secret)) {
      try {
        socket_ = connect_to(config_.address);
        keep_alive(socket_.get());
        return prove(*secret, end + seconds(grace_seconds));
      } catch (const Error& error) {
        problem = error.what();
      }
    } else {
      problem = fmt::format(
          "the launcher of rank 0 writes the start's secret to {}, which is not there. Where the machines share no "
          "file system, set ORTHANT_SECRET to the same 32 or more random characters for every rank",
          config_.secret.file.string());
    }
    require(Clock::now() < end, "rank {} cannot reach rank 0 at {} within {:g} s: {}", config_.rank, config_.address,
            config_.timeout_seconds, problem);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// What comes after rank 0's proof are frames.
void Rendezvous::prove(const std::string& secret, Clock::time_point end) {
  Handshake handshake(Handshake::Side::connects, secret);
  std::array<char, 256> buffer;
  while (!handshake.done()) {
    pollfd ready{socket_.get(), POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const bool heard = left.count() > 0 && poll(&ready, 1, static_cast<int>(left.count())) > 0;
    require(heard, "it does not answer: it is stopped, or something else listens there");
    const ssize_t n = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    require(n > 0,
            "what listens there closed the connection: it knows another secret (another run, or another start of this "
            "one), or it is not Orthant. Give each run its own port (ORTHANT_RENDEZVOUS=host:port)");
    send_bytes(handshake.take({buffer.data(), static_cast<std::size_t>(n)}));
  }
  reader_ = FrameReader(max_frame);
  reader_.feed(handshake.rest());
}

void Rendezvous::await_welcome() {
  const Clock::time_point end = Clock::now() + seconds(config_.timeout_seconds + grace_seconds);
  for (;;) {
    pollfd ready{socket_.get(), POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    const bool silent = left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) == 0;
    require(!silent, "rank 0 at {} does not answer rank {}: it is stopped, or something else listens there",
            config_.address, config_.rank);
    std::optional<Frame> frame;
    try {
      frame = receive();
    } catch (const Error&) {
      orthant::fail(
          "what listens at {} is not rank 0 of this version of Orthant: give the run another port "
          "(ORTHANT_RENDEZVOUS=host:port)",
          config_.address);
    }
    require(frame.has_value(), "rank 0 at {} closed the connection before all ranks were there: see its log",
            config_.address);
    if (frame->type == FrameType::welcome) {
      return;
    }
    require(frame->type != FrameType::refused && frame->type != FrameType::failed, "{}", frame->text);
  }
}

// Waits for a whole frame.
std::optional<Frame> Rendezvous::receive() {
  std::array<char, 16384> buffer;
  for (;;) {
    if (auto frame = reader_.next()) {
      return frame;
    }
    const ssize_t n = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (n == 0 || (n < 0 && errno != EINTR)) {
      return std::nullopt;
    }
    if (n > 0) {
      reader_.feed({buffer.data(), static_cast<std::size_t>(n)});
    }
  }
}

void Rendezvous::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  thread_ = std::thread([this] { run(); });
}

void Rendezvous::run() {
  try {
    while (auto frame = receive()) {
      handle(*frame);
    }
  } catch (const Error& error) {
    set_failure(fmt::format("rank {} cannot read what rank 0 sends: {}", config_.rank, error.what()));
  }
  set_failure("rank 0 ended without a word: its connection closed (it was killed or crashed; see its log)");
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Rendezvous::handle(Frame& frame) {
  switch (frame.type) {
    case FrameType::failed: return set_failure(frame.text);
    case FrameType::note: return handlers_.note(frame.rank, frame.text);
    case FrameType::left: return handlers_.left(frame.rank);
    case FrameType::gathered: {
      const std::lock_guard lock(mutex_);
      gathered_ = std::move(frame.text);
      changed_.notify_all();
      return;
    }
    default: return;
  }
}

void Rendezvous::set_failure(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || closing_) {
      return;
    }
    failure_ = why;
    changed_.notify_all();
  }
  if (handlers_.failed) {
    handlers_.failed();
  }
}

std::optional<std::string> Rendezvous::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Rendezvous::fail(const std::string& why) noexcept {
  try {
    send_frame({FrameType::failed, config_.rank, why.substr(0, 4000)});
    set_failure(why);
  } catch (...) {  // out of memory: the closing connection tells the others
  }
}

void Rendezvous::post(int to, const std::string& text) noexcept {
  try {
    send_frame({FrameType::note, to, text});
  } catch (...) {
  }
}

void Rendezvous::send_frame(const Frame& frame) noexcept {
  send_bytes(encode(frame));
}

void Rendezvous::send_bytes(std::string_view bytes) noexcept {
  const std::lock_guard lock(write_mutex_);
  while (!bytes.empty()) {
    const ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR) {
      return;  // the reader sees the end of the connection
    }
    bytes.remove_prefix(n > 0 ? static_cast<std::size_t>(n) : 0);
  }
}

std::vector<std::string> Rendezvous::all_gather(const std::string& label, const std::string& payload) {
  send_frame({FrameType::gather, config_.rank, label + '\0' + payload});
  std::string all;
  {
    std::unique_lock lock(mutex_);
    const bool told = changed_.wait_for(lock, seconds(config_.timeout_seconds + grace_seconds),
                                        [this] { return failure_ || gathered_; });
    require(told, "rank 0, through which the ranks meet, does not answer at {}", label);
    require(gathered_.has_value(), "{} cannot complete: {}", label, failure_.value_or(""));
    all = std::move(*gathered_);
    gathered_.reset();
  }
  std::vector<std::string> payloads;
  for (std::size_t at = 0; at < all.size();) {
    std::uint32_t bytes = 0;
    require(all.size() - at >= sizeof(bytes), "{}: rank 0 sent a message cut short", label);
    std::memcpy(&bytes, all.data() + at, sizeof(bytes));
    at += sizeof(bytes);
    require(all.size() - at >= bytes, "{}: rank 0 sent a message cut short", label);
    payloads.push_back(all.substr(at, bytes));
    at += bytes;
  }
  require(payloads.size() == static_cast<std::size_t>(config_.world_size), "{}: rank 0 sent {} parts for {} ranks",
          label, payloads.size(), config_.world_size);
  return payloads;
}

void Rendezvous::leave() noexcept {
  left_ = true;
  send_frame({FrameType::left, config_.rank, {}});
}

Rendezvous::~Rendezvous() {
  if (!stopped_) {
    stop();
  }
}

void Rendezvous::stop() {
  stopped_ = true;
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    failed = failure_.has_value();
    closing_ = true;
  }
  if (!failed && !left_) {
    leave();
  }
  // The hub closes last: a connection closed here with bytes unread would take what was just sent with it.
  shutdown(socket_.get(), SHUT_WR);
  hub_.reset();
  if (thread_.joinable()) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, seconds(grace_seconds), [this] { return ended_; });
    }
    shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
}

}  // namespace orthant::nccl
