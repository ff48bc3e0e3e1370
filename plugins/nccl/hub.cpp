#include "hub.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <orthant/error.h>

#include "address.h"

namespace orthant::nccl {
namespace {

constexpr std::size_t max_text = 64 << 10;
constexpr std::size_t max_strangers = 64;  // connections that have proven nothing, beyond one for each rank
constexpr std::chrono::seconds last_words{1};
constexpr int tick_milliseconds = 50;

}  // namespace

std::string hello_text(int world_size, const std::string& job) {
  return fmt::format("{} {}", world_size, job);
}

Hub::Hub(Socket listener, Socket own, HubOptions options)
    : listener_(std::move(listener)),
      options_(std::move(options)),
      come_(static_cast<std::size_t>(options_.world_size)),
      left_(come_.size()),
      contributions_(come_.size()) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    orthant::fail("cannot make a socket pair: {}", std::strerror(errno));
  }
  wake_ = Socket(ends[0]);
  woken_ = Socket(ends[1]);
  peers_.push_back({std::move(own), FrameReader(max_text), {}, -1, Clock::now(), false, nullptr});
  thread_ = std::thread([this] { run(); });
}

Hub::~Hub() {
  shutdown(wake_.get(), SHUT_RDWR);
  thread_.join();
}

bool Hub::may_end() const {
  if (!stopping_) {
    return false;
  }
  if (failed_) {
    const bool said = std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.out.empty(); });
    return said || Clock::now() - failed_at_ > last_words;
  }
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.rank < 0; });
}

void Hub::run() {
  std::vector<pollfd> polled;
  while (!may_end()) {
    polled = {{listener_.get(), POLLIN, 0}};
    if (!stopping_) {
      polled.push_back({woken_.get(), POLLIN, 0});
    }
    const std::size_t first_peer = polled.size(), count = peers_.size();
    for (const Peer& peer : peers_) {
      polled.push_back({peer.socket.get(), static_cast<short>(peer.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    poll(polled.data(), polled.size(), tick_milliseconds);
    if (!stopping_ && polled[1].revents != 0) {
      stopping_ = true;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const short events = polled[first_peer + i].revents;
      if ((events & POLLOUT) != 0) {
        write_to(peers_[i]);
      }
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && peers_[i].socket.is_open()) {
        read_from(peers_[i]);
      }
    }
    if (polled[0].revents != 0) {
      accept_one();
    }
    check_times();
    std::erase_if(peers_, [](const Peer& peer) { return !peer.socket.is_open(); });
  }
}

// Neither strangers that say nothing nor many of them keep a rank out: the oldest makes room.
void Hub::accept_one() {
  Socket socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) {
    if (errno == EMFILE || errno == ENFILE) {
      drop_oldest_stranger();
    }
    return;
  }
  if (is_of_another_user(socket.get())) {
    ++refused_;
    return;
  }
  const auto strangers =
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& p) { return p.proving != nullptr; });
  if (static_cast<std::size_t>(strangers) >= come_.size() + max_strangers) {
    drop_oldest_stranger();
  }
  auto proving = std::make_unique<Handshake>(Handshake::Side::listens, options_.secret);
  std::string first = proving->first();
  peers_.push_back(
      {std::move(socket), FrameReader(max_text), std::move(first), -1, Clock::now(), false, std::move(proving)});
}

void Hub::drop_oldest_stranger() {
  const auto oldest = std::find_if(peers_.begin(), peers_.end(),
                                   [](const Peer& p) { return p.proving != nullptr && p.socket.is_open(); });
  if (oldest != peers_.end()) {
    peers_.erase(oldest);
  }
}

void Hub::read_from(Peer& peer) {
  std::array<char, 16384> buffer;
  const ssize_t n = recv(peer.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (n <= 0) {
    return lose(peer);
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(n));
  try {
    if (peer.proving) {
      peer.out += peer.proving->take(bytes);
      if (!peer.proving->done()) {
        return;
      }
      peer.reader.feed(peer.proving->rest());
      peer.proving.reset();
    } else {
      peer.reader.feed(bytes);
    }
    while (auto frame = peer.reader.next()) {
      handle(peer, std::move(*frame));
    }
  } catch (const Error&) {  // a stranger, or a rank whose bytes are damaged
    refused_ += peer.proving ? 1 : 0;
    lose(peer);
  }
}

void Hub::write_to(Peer& peer) {
  const ssize_t n = send(peer.socket.get(), peer.out.data(), peer.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) {
    peer.out.erase(0, static_cast<std::size_t>(n));
  } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
    peer.out.clear();  // reading will tell that the connection is gone
  }
  if (peer.closing && peer.out.empty()) {
    peer.socket.close();
  }
}

void Hub::lose(Peer& peer) {
  const int rank = peer.rank;
  peer.rank = -1;
  peer.out.clear();
  peer.socket.close();
  if (rank >= 0 && !left_[rank]) {
    fail(rank,
         fmt::format("rank {} ended without a word: its connection closed (it was killed or crashed; see its log)",
                     rank));
  }
}

void Hub::handle(Peer& peer, Frame frame) {
  if (peer.closing) {
    return;
  }
  if (peer.rank < 0) {
    require(frame.type == FrameType::hello, "not a hello");
    return admit(peer, frame);
  }
  switch (frame.type) {
    case FrameType::failed:
      require(frame.rank >= -1 && frame.rank < options_.world_size, "no such rank");
      return fail(frame.rank, frame.text);
    case FrameType::gather: return gather(peer.rank, frame.text);
    case FrameType::note: {
      const Frame passed{FrameType::note, peer.rank, std::move(frame.text)};
      for (Peer& other : peers_) {
        if (other.rank >= 0 && &other != &peer && (frame.rank < 0 || frame.rank == other.rank)) {
          tell(other, passed);
        }
      }
      return;
    }
    case FrameType::left: return leave(peer.rank);
    default: orthant::fail("unexpected frame");
  }
}

void Hub::admit(Peer& peer, const Frame& hello) {
  const std::size_t blank = hello.text.find(' ');
  const std::string_view digits = std::string_view(hello.text).substr(0, blank);
  int world_size = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), world_size);
  const std::string job = blank == std::string::npos ? "" : hello.text.substr(blank + 1);
  if (job != options_.job) {
    return refuse(peer, fmt::format("another run ('{}') meets at {}: give each run its own port "
                                    "(ORTHANT_RENDEZVOUS=host:port)",
                                    options_.job, options_.address));
  }
  require(hello.rank >= 0 && hello.rank < world_size, "not a rank");
  if (world_size != options_.world_size) {
    const std::string why = fmt::format("rank {} was told of a world of {} ranks, rank 0 of one of {}", hello.rank,
                                        world_size, options_.world_size);
    refuse(peer, why);
    return fail(-1, why);
  }
  const auto rank = static_cast<std::size_t>(hello.rank);
  if (failed_) {
    return refuse(peer, failure_.text);
  }
  if (come_[rank]) {
    return refuse(peer, fmt::format("rank {} is already here: two processes were started with one rank", hello.rank));
  }
  come_[rank] = true;
  peer.rank = hello.rank;
  if (++joined_ == options_.world_size) {
    tell_all({FrameType::welcome, -1, {}});
    listener_.close();  // nobody else is to come
  }
}

void Hub::refuse(Peer& peer, const std::string& why) {
  tell(peer, {FrameType::refused, -1, why});
  peer.closing = true;
}

void Hub::gather(int rank, const std::string& text) {
  const std::size_t zero = text.find('\0');
  require(zero != std::string::npos, "a gather without a label");
  const std::string label = text.substr(0, zero);
  if (label_.empty()) {
    label_ = label;
    gather_start_ = Clock::now();
  } else if (label != label_) {
    const auto first =
        std::find_if(contributions_.begin(), contributions_.end(), [](const auto& c) { return c.given; });
    return fail(-1, fmt::format("rank {} calls {} while rank {} calls {}: both must be called in the same order on "
                                "every rank",
                                rank, label, first - contributions_.begin(), label_));
  }
  contributions_[rank] = {true, text.substr(zero + 1)};
  if (!std::all_of(contributions_.begin(), contributions_.end(), [](const auto& c) { return c.given; })) {
    for (std::size_t r = 0; r < left_.size(); ++r) {
      if (left_[r] && !contributions_[r].given) {
        return fail(static_cast<int>(r), fmt::format("rank {} finished its work without a call to {}", r, label_));
      }
    }
    return;
  }
  Frame all{FrameType::gathered, -1, {}};
  for (Contribution& c : contributions_) {
    const auto bytes = static_cast<std::uint32_t>(c.payload.size());
    all.text.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    all.text += c.payload;
    c = {};
  }
  label_.clear();
  tell_all(all);
}

void Hub::leave(int rank) {
  left_[rank] = true;
  tell_all({FrameType::left, rank, {}}, rank);
  if (!label_.empty() && !contributions_[rank].given) {
    fail(rank, fmt::format("rank {} finished its work without a call to {}", rank, label_));
  }
}

std::string Hub::names_of_missing() const {
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < come_.size(); ++r) {
    if (!(joined_ < options_.world_size ? come_[r] : contributions_[r].given)) {
      ranks.push_back(r);
    }
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

void Hub::check_times() {
  const Clock::time_point now = Clock::now();
  const auto longer = [&](double seconds, Clock::time_point since) {
    return std::chrono::duration<double>(now - since).count() > seconds;
  };
  const auto late = [&](Clock::time_point since) { return longer(options_.timeout_seconds, since); };
  for (Peer& peer : peers_) {
    if (peer.rank < 0 && longer(options_.stranger_seconds, peer.since)) {
      peer.socket.close();
    }
  }
  if (!failed_ && joined_ < options_.world_size && late(start_)) {
    fail(-1, fmt::format(
                 "{} did not come to {} within {:g} s: not started, or that address cannot be reached from there{}{}",
                 names_of_missing(), options_.address, options_.timeout_seconds,
                 refused_ > 0 ? fmt::format(" ({} connections did not know the secret of this start)", refused_) : "",
                 note_of_reach(listener_)));
  }
  if (!failed_ && !label_.empty() && late(gather_start_)) {
    fail(-1,
         fmt::format("{} did not arrive at {} within {:g} s", names_of_missing(), label_, options_.timeout_seconds));
  }
}

void Hub::fail(int rank, const std::string& why) {
  if (!failed_) {
    failed_ = true;
    failed_at_ = Clock::now();
    failure_ = {FrameType::failed, rank, why};
    tell_all(failure_);
  }
}

void Hub::tell_all(const Frame& frame, int except) {
  for (Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.rank != except) {
      tell(peer, frame);
    }
  }
}

}  // namespace orthant::nccl
