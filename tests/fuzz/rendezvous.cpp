// Bytes that a stranger sends to the rendezvous, cut into frames as they come.
#include <orthant/error.h>

#include <algorithm>
#include <string_view>

#include "plugins/nccl/frame.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

// The first byte says into what parts the rest is cut.
int run(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::size_t part = data[0] + std::size_t{1};
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
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
  return {std::string(1, '\xff') + conversation, std::string(1, '\2') + conversation};
}

}  // namespace

const Target rendezvous = {"rendezvous", run, seeds};

}  // namespace orthant::fuzz
