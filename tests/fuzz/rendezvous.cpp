// Bytes that a stranger sends to the rendezvous: to its handshake, and, as if they had passed it, cut into frames.
#include <orthant/error.h>
#include <orthant/handshake.h>

#include <algorithm>
#include <string_view>

#include "plugins/nccl/frame.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

// Nobody gets past it without the secret, on either side.
void shake_hands(Handshake::Side side, std::string_view rest, std::size_t part) {
  Handshake handshake(side, "the secret of a start that nobody else knows");
  try {
    while (!rest.empty() && !handshake.done()) {
      handshake.take(rest.substr(0, part));
      rest.remove_prefix(std::min(part, rest.size()));
    }
  } catch (const Error&) {
  }
  if (handshake.done()) {
    __builtin_trap();
  }
}

// The first byte says into what parts the rest is cut.
int run(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::size_t part = data[0] + std::size_t{1};
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  shake_hands(Handshake::Side::listens, rest, part);
  shake_hands(Handshake::Side::connects, rest, part);
  nccl::FrameReader reader(4096);
  try {
    while (!rest.empty()) {
      reader.feed(rest.substr(0, part));
      rest.remove_prefix(std::min(part, rest.size()));
      while (const auto frame = reader.next()) {
        require(frame->text.size() <= 4096, "a frame of {} bytes was let in", frame->text.size());
        const std::string again = nccl::encode(*frame);
        nccl::FrameReader other(4096);
        other.feed(again);
        if (!other.next()) {
          __builtin_trap();  // what was read can be written and read again
        }
      }
    }
  } catch (const Error&) {
  }
  return 0;
}

std::vector<std::string> seeds() {
  std::string conversation;
  conversation += nccl::encode({nccl::FrameType::hello, 1, "2 a job"});
  conversation += nccl::encode({nccl::FrameType::gather, 1, std::string("label\0payload", 13)});
  conversation += nccl::encode({nccl::FrameType::note, -1, "a note"});
  conversation += nccl::encode({nccl::FrameType::failed, 1, "why"});
  conversation += nccl::encode({nccl::FrameType::left, 1, ""});
  const std::string greeting = "orthant1" + std::string(16, 'r') + std::string(32, 'p');
  return {std::string(1, '\xff') + conversation, std::string(1, '\2') + conversation, '\xff' + greeting,
          '\7' + greeting + conversation};
}

}  // namespace

const Target rendezvous = {"rendezvous", run, seeds};

}  // namespace orthant::fuzz
