// Frames: what ranks say to each other over the rendezvous' connections, and their bytes.
//
// 16 bytes of header in the byte order of the machine (magic, type, rank, length), then `length` bytes of text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace orthant::nccl {

enum class FrameType : std::uint32_t {
  hello = 1,  // to the hub. rank: the sender; text: world size, a blank, the job
  welcome,    // from it: everyone is there
  refused,    // from it. text: why
  failed,     // both ways. rank: at fault, or -1; text: why
  gather,     // to the hub. text: label, a zero byte, payload
  gathered,   // from it. text: for each rank its payload's size (4 bytes) and the payload
  note,       // to the hub. rank: for whom, or -1 for all others; from it: the sender
  left,       // both ways. rank: who has finished
  last = left
};

struct Frame {
  FrameType type = FrameType::hello;
  std::int32_t rank = -1;
  std::string text;
};

std::string encode(const Frame& frame);

// Cuts a stream of bytes into frames. Holds no more than has been fed: a length that a stranger claims allocates
// nothing.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_text) : max_text_(max_text) {}
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame. Errors: Error for bytes that are no frame, or one longer than max_text.
  std::optional<Frame> next();

 private:
  std::size_t max_text_;
  std::string buffer_;
};

}  // namespace orthant::nccl
