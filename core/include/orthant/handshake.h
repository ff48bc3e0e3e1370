// Handshake: how two processes of one start prove to each other, over a connection, that they belong to it.
//
// Both know the secret of the start, and neither sends it. Each sends random bytes, and shows what it knows by a keyed
// hash (HMAC-SHA-256) of the random bytes of both and of its own side. Who connects shows it first: a stranger who
// connects is sent random bytes and nothing else, and one who listens in the other's place gets a proof that answers
// only his own random bytes. What is said afterwards is neither encrypted nor signed: it does not keep out who can
// change what the two send each other.
//
// Thread safety: one thread for each Handshake; the functions from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace orthant {

// Where a process finds the secret of its start: the value (ORTHANT_SECRET), or else a file that the launcher of rank 0
// writes (ORTHANT_SECRET_FILE).
struct SecretPlace {
  std::string value;
  std::filesystem::path file;
};

// The secret, or nothing where the file is not there yet. A file may be an earlier start's: who is refused with it
// reads again. Errors: Error for a value of fewer than 32 characters (it is not repeated), a place that names nothing,
// a file that cannot be read, that is another user's, or that others may read.
std::optional<std::string> read_secret(const SecretPlace& place);

// Whether the process at the other end of a unix socket is another user's; false for a network's.
bool is_of_another_user(int socket);

// One side of the conversation, in bytes; sending and receiving are the caller's.
class Handshake {
 public:
  enum class Side { listens, connects };
  Handshake(Side side, std::string secret);

  // What to send first; empty on the side that connects.
  std::string first() const;
  // Takes bytes of the other side, in pieces of any size; returns what to send now, empty: nothing.
  // REQUIRES: not done(). Errors: Error where the other side is no Orthant of this version, or knows another secret.
  std::string take(std::string_view bytes);
  // Both have proven themselves.
  bool done() const { return done_; }
  // What came after the last byte of the handshake.
  const std::string& rest() const { return buffer_; }

 private:
  std::string proof(Side side) const;

  Side side_;
  std::string secret_;
  std::string own_, others_;  // random bytes
  std::string buffer_;        // not yet taken
  bool done_ = false;
};

}  // namespace orthant
