#include <fcntl.h>
#include <orthant/error.h>
#include <orthant/handshake.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/base/keyed_hash.h"

namespace orthant {
namespace {

constexpr std::string_view greeting = "orthant1";  // with the version of this protocol
constexpr std::size_t nonce_bytes = 16, proof_bytes = 32, shortest_secret = 32;

void require_long(std::string_view secret, const std::string& where) {
  require(secret.size() >= shortest_secret,
          "{} holds a secret of {} characters: at least {} are needed, for example what `openssl rand -hex 16` prints",
          where, secret.size(), shortest_secret);
}

struct File {
  int descriptor;
  explicit File(int opened) : descriptor(opened) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) {
      close(descriptor);
    }
  }
};

}  // namespace

std::optional<std::string> read_secret(const SecretPlace& place) {
  if (!place.value.empty()) {
    require_long(place.value, "ORTHANT_SECRET");
    return place.value;
  }
  const std::string name = place.file.string();
  require(!name.empty(),
          "the ranks have no secret to know each other by: start them with `orthant launch`, or set ORTHANT_SECRET to "
          "the same 32 or more random characters for every rank");
  // A network file system remembers for a while that there was no such file, until somebody looks at the folder.
  const File folder(
      open(place.file.has_parent_path() ? place.file.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const File file(open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const int reason = errno;
  if (file.descriptor < 0 && (reason == ENOENT || reason == ESTALE)) {
    return std::nullopt;
  }
  require(file.descriptor >= 0, "cannot read the secret of this start, {}: {}", name, std::strerror(reason));
  struct stat status {};
  require(fstat(file.descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
              (status.st_mode & 077) == 0,
          "{} is not used as the secret of this start: it must be a file of this user that nobody else may read", name);
  std::array<char, 256> buffer;
  const ssize_t count = read(file.descriptor, buffer.data(), buffer.size());
  std::string secret(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  require_long(secret, name);
  return secret;
}

bool is_of_another_user(int socket) {
  int domain = 0;
  socklen_t bytes = sizeof(domain);
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain != AF_UNIX) {
    return false;
  }
  ucred peer{};
  bytes = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.uid != geteuid();
}

Handshake::Handshake(Side side, std::string secret)
    : side_(side), secret_(std::move(secret)), own_(random_bytes(nonce_bytes)) {}

std::string Handshake::first() const {
  return side_ == Side::listens ? std::string(greeting) + own_ : "";
}

std::string Handshake::proof(Side side) const {
  const bool listens = side_ == Side::listens;
  const std::string text =
      (side == Side::listens ? "listens" : "connects") + (listens ? own_ : others_) + (listens ? others_ : own_);
  return keyed_hash(secret_, text);
}

// listens: greeting, random bytes. connects: greeting, random bytes, proof. listens: proof.
std::string Handshake::take(std::string_view bytes) {
  buffer_.append(bytes);
  const auto next = [&](std::size_t count) {
    std::string taken = buffer_.substr(0, count);
    buffer_.erase(0, count);
    return taken;
  };
  const auto require_proof = [&](Side side) {
    require(same_bytes(next(proof_bytes), proof(side)), "the other side knows another secret");
  };
  std::string answer;
  if (others_.empty()) {
    const std::string_view come = std::string_view(buffer_).substr(0, greeting.size());
    require(come == greeting.substr(0, come.size()), "what answers is not Orthant, or another version of it");
    const std::size_t expected = greeting.size() + nonce_bytes + (side_ == Side::listens ? proof_bytes : 0);
    if (buffer_.size() < expected) {
      return answer;
    }
    next(greeting.size());
    others_ = next(nonce_bytes);
    if (side_ == Side::listens) {
      require_proof(Side::connects);
      done_ = true;
      return proof(Side::listens);
    }
    answer = std::string(greeting) + own_ + proof(Side::connects);
  }
  if (buffer_.size() >= proof_bytes) {
    require_proof(Side::listens);
    done_ = true;
  }
  return answer;
}

}  // namespace orthant
