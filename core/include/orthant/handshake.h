// Handshake: how two processes of one start prove to each other, over a connection, that they belong to it.
//
// Both know the secret of the start, and neither sends it. Each sends random bytes. Each then shows that it knows the
// secret, by a keyed hash (HMAC-SHA-256) of both sides' random bytes and of its own side. The side that connects shows
// it first. A stranger who connects is sent random bytes and nothing else. A stranger who listens gets a proof that
// answers only his own random bytes. What is said afterwards is neither encrypted nor signed: someone who can change
// what the two send each other is not kept out.
//
// Thread safety: one thread for each Handshake; the functions from any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <orthant/abi/communicators.h>

namespace orthant {

// The place where a process finds the secret of its start: the value (ORTHANT_SECRET), or else a file that the launcher
// of rank 0 writes (ORTHANT_SECRET_FILE).
struct SecretPlace {
  std::string value;
  std::filesystem::path file;
};

// Reads the secret; nothing if the file is not there yet. The file may be an earlier start's: whoever is refused with
// its secret reads again. Errors: Error for a value of fewer than 32 characters (the message does not repeat it), for a
// place that names nothing, and for a file that cannot be read, is another user's, or may be read by others.
std::optional<std::string> read_secret(const SecretPlace& place);

// Whether the process at the other end of a unix socket is another user's; false for a network socket.
bool is_of_another_user(int socket);

// One side of the conversation, in bytes; sending and receiving are the caller's.
class Handshake {
 public:
  enum class Side { listens, connects };
  Handshake(Side side, std::string secret);

  // What to send first; empty on the side that connects.
  std::string first() const;
  // Takes bytes of the other side, in pieces of any size. Returns what to send now; empty: nothing.
  // REQUIRES: not done(). Errors: Error if the other side is no Orthant of this version, or knows another secret.
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
