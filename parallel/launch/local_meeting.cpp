#include "parallel/launch/local_meeting.h"

#include <orthant/error.h>

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/keyed_hash.h"
#include "core/base/output.h"

namespace orthant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds request_time{5};  // of a connection that has not said which rank it is
constexpr std::size_t max_waiting = 64;          // of those, beyond the ranks
constexpr int pause_milliseconds = 100;          // where no descriptor is free

// What a rank says first. The answer: the byte 'S' with the segment's descriptor, or why not, in words.
struct Request {
  std::int32_t rank = 0, world_size = 0;
};

struct Address {
  sockaddr_un where{};
  socklen_t bytes = 0;
};

Address address_of(const std::string& secret, const std::string& key) {
  const std::string name = "orthant-" + to_hex(keyed_hash(secret, "shared memory of " + key)).substr(0, 32);
  Address address;
  address.where.sun_family = AF_UNIX;
  std::memcpy(address.where.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

const sockaddr* pointer(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.where);
}

Descriptor open_socket(int flags) {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!socket.is_open()) {
    fail("cannot make a socket: {}", std::strerror(errno));
  }
  return socket;
}

// Space for one descriptor that travels with a message.
struct Cargo {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
};

void send_segment(int socket, int segment) {
  char byte = 'S';
  iovec part{&byte, 1};
  Cargo cargo;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = cargo.bytes.data();
  message.msg_controllen = cargo.bytes.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &segment, sizeof(int));
  sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);  // who does not get it sees the connection close
}

// The answer to a request: the segment, or nothing where the connection has ended. Errors: Error with the refusal.
std::optional<Descriptor> receive_segment(int socket) {
  std::array<char, 500> text;
  iovec part{text.data(), text.size()};
  Cargo cargo;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = cargo.bytes.data();
  message.msg_controllen = cargo.bytes.size();
  const ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (count <= 0) {
    return std::nullopt;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    return Descriptor(descriptor);
  }
  fail("{}", std::string_view(text.data(), static_cast<std::size_t>(count)));
}

// A connection that ended: right where its rank has finished, or where it is known to have failed.
void mark_gone(LocalSegment& segment, int rank) {
  const RankState state = segment.state(rank);
  if (state != RankState::finished && state != RankState::failed) {
    segment.mark_failed(
        rank, fmt::format("rank {} is gone: the process that started it ended without a word (killed? see its output)",
                          rank));
  }
}

// Rank 0's side, on a thread: gives the segment to the others and sees them go.
class Server {
 public:
  Server(Descriptor listener, Descriptor woken, std::shared_ptr<LocalSegment> segment, std::filesystem::path secret)
      : listener_(std::move(listener)),
        woken_(std::move(woken)),
        segment_(std::move(segment)),
        secret_(std::move(secret)),
        come_(static_cast<std::size_t>(segment_->world_size())) {
    come_[0] = true;
  }

  void run() {
    std::vector<pollfd> polled;
    for (;;) {
      const bool pauses = Clock::now() < accepts_again_;  // poll passes over a descriptor below 0
      polled = {{woken_.get(), POLLIN, 0}, {pauses ? -1 : listener_.get(), POLLIN, 0}};
      const std::size_t count = guests_.size();
      for (const Guest& guest : guests_) {
        polled.push_back({guest.socket.get(), POLLIN, 0});
      }
      poll(polled.data(), polled.size(), pauses ? pause_milliseconds : 500);
      if (polled[0].revents != 0) {
        return;
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (polled[2 + i].revents != 0) {
          hear(guests_[i]);
        }
      }
      if (polled[1].revents != 0) {
        accept_one();
      }
      forget();
    }
  }

 private:
  struct Guest {
    Descriptor socket;
    Clock::time_point since;
    int rank = -1;  // not yet said
  };

  void accept_one() {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno == EMFILE || errno == ENFILE) {
        make_room(errno);
      }
      return;
    }
    if (!is_of_another_user(socket.get())) {
      guests_.push_back({std::move(socket), Clock::now()});
    }
  }

  // Without a free descriptor the connection stays ready to be accepted. The oldest that has said nothing makes room;
  // without one there is a pause, in which others of this process may close some.
  void make_room(int error) {
    const auto oldest = std::find_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.rank < 0; });
    if (oldest != guests_.end()) {
      guests_.erase(oldest);
      return;
    }
    accepts_again_ = Clock::now() + std::chrono::milliseconds(pause_milliseconds);
    if (!std::exchange(said_, true)) {
      say("launch: a rank that comes cannot be let in: {}; it is tried again (see ulimit -n)",
          std::generic_category().message(error));
    }
  }

  void hear(Guest& guest) {
    Request request;
    const ssize_t count = recv(guest.socket.get(), &request, sizeof(request), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    if (count == sizeof(request) && guest.rank < 0) {
      return admit(guest, request);
    }
    guest.socket.close();
    if (guest.rank >= 0) {
      mark_gone(*segment_, guest.rank);
    }
  }

  void admit(Guest& guest, const Request& request) {
    const int size = segment_->world_size();
    std::string why;
    if (request.world_size != size) {
      why = fmt::format("rank {} was told of a world of {} ranks, rank 0 of one of {}", request.rank,
                        request.world_size, size);
    } else if (request.rank < 1 || request.rank >= size || come_[request.rank]) {
      why = fmt::format("rank {} is already here: two processes were started with one rank", request.rank);
    }
    if (!why.empty()) {
      send(guest.socket.get(), why.data(), why.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      return guest.socket.close();
    }
    come_[request.rank] = true;
    guest.rank = request.rank;
    send_segment(guest.socket.get(), segment_->fd());
    if (std::all_of(come_.begin(), come_.end(), [](bool there) { return there; })) {
      listener_.close();  // nobody else is to come
      std::error_code ignored;
      std::filesystem::remove(secret_, ignored);
    }
  }

  // Connections that have ended, and those that say nothing.
  void forget() {
    std::size_t waiting = static_cast<std::size_t>(
        std::count_if(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.rank < 0; }));
    for (Guest& guest : guests_) {
      const bool late = Clock::now() - guest.since > request_time || waiting > come_.size() + max_waiting;
      if (guest.rank < 0 && late) {
        guest.socket.close();
        --waiting;
      }
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.socket.is_open(); });
  }

  Descriptor listener_, woken_;
  std::shared_ptr<LocalSegment> segment_;
  std::filesystem::path secret_;  // the file; may be empty
  std::vector<Guest> guests_;     // the oldest first
  std::vector<bool> come_;
  Clock::time_point accepts_again_{};
  bool said_ = false;  // why it pauses
};

Descriptor listen_for_others(const LocalMeetingOptions& options) {
  const std::optional<std::string> secret = read_secret(options.secret);
  require(secret.has_value(), "rank 0 has no secret to be found by");
  const Address address = address_of(*secret, options.key);
  Descriptor socket = open_socket(SOCK_NONBLOCK);
  if (bind(socket.get(), pointer(address), address.bytes) != 0 || listen(socket.get(), 1024) != 0) {
    fail("rank 0 cannot wait for the other ranks of this machine: {}. Does another run use the same ORTHANT_SECRET?",
         std::strerror(errno));
  }
  return socket;
}

struct Joined {
  Descriptor connection;
  std::shared_ptr<LocalSegment> segment;
};

// One attempt. Errors: Error with the refusal. Nothing: rank 0 is not there, and `problem` says more.
std::optional<Joined> try_to_join(const LocalMeetingOptions& options, Clock::time_point end, std::string& problem) {
  const std::optional<std::string> secret = read_secret(options.secret);
  if (!secret) {
    problem = fmt::format("the process of rank 0 writes {}, which is not there", options.secret.file.string());
    return std::nullopt;
  }
  problem = "nobody waits for it with the secret of this start";
  const Address address = address_of(*secret, options.key);
  Descriptor socket = open_socket(0);
  if (connect(socket.get(), pointer(address), address.bytes) != 0) {
    return std::nullopt;
  }
  require(!is_of_another_user(socket.get()), "the process that waits in rank 0's place is another user's");
  const Request request{options.rank, options.world_size};
  send(socket.get(), &request, sizeof(request), MSG_NOSIGNAL);
  pollfd ready{socket.get(), POLLIN, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  problem = "the process of rank 0 does not answer";
  if (poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 1))) <= 0) {
    return std::nullopt;
  }
  const std::optional<Descriptor> segment = receive_segment(socket.get());
  if (!segment) {
    problem = "the process of rank 0 closed the connection";
    return std::nullopt;
  }
  return Joined{std::move(socket), LocalSegment::attach(segment->get())};
}

Joined join(const LocalMeetingOptions& options) {
  const auto end = Clock::now() +
                   std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout_seconds));
  for (std::string problem;;) {
    if (std::optional<Joined> joined = try_to_join(options, end, problem)) {
      require(joined->segment->world_size() == options.world_size, "rank 0 shares the memory of another world");
      return std::move(*joined);
    }
    require(Clock::now() < end,
            "rank {} did not find rank 0 on this machine within {:g} s: {}. See the output of rank 0", options.rank,
            options.timeout_seconds, problem);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Signals are the launcher's own affair: the thread takes none of them.
std::thread make_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

LocalMeeting::LocalMeeting(const LocalMeetingOptions& options) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fail("cannot make a socket pair: {}", std::strerror(errno));
  }
  wake_ = Descriptor(ends[0]);
  Descriptor woken(ends[1]);
  if (options.rank == 0) {
    Descriptor listener = listen_for_others(options);
    segment_ = LocalSegment::create(options.world_size);
    auto server = std::make_shared<Server>(std::move(listener), std::move(woken), segment_, options.secret.file);
    thread_ = make_thread([server] { server->run(); });
    return;
  }
  auto joined = std::make_shared<Joined>(join(options));
  segment_ = joined->segment;
  thread_ = make_thread([joined, end = std::make_shared<Descriptor>(std::move(woken))] {
    std::array<pollfd, 2> polled = {{{end->get(), POLLIN, 0}, {joined->connection.get(), POLLIN, 0}}};
    while (poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    if (polled[0].revents == 0) {
      mark_gone(*joined->segment, 0);
    }
  });
}

LocalMeeting::~LocalMeeting() {
  wake_.close();
  thread_.join();
}

}  // namespace orthant
