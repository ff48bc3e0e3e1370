#include "frame.h"

#include <cstring>

#include <orthant/error.h>

namespace orthant::nccl {
namespace {

struct Header {
  std::uint32_t magic;
  FrameType type;
  std::int32_t rank;
  std::uint32_t length;
};
static_assert(sizeof(Header) == 16);

constexpr std::uint32_t magic_of_version_1 = 0x314e524f;  // "ORN1"

}  // namespace

std::string encode(const Frame& frame) {
  const Header header{magic_of_version_1, frame.type, frame.rank, static_cast<std::uint32_t>(frame.text.size())};
  std::string bytes(sizeof(header), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes + frame.text;
}

std::optional<Frame> FrameReader::next() {
  if (buffer_.size() < sizeof(Header)) {
    return std::nullopt;
  }
  Header header{};
  std::memcpy(&header, buffer_.data(), sizeof(header));
  require(header.magic == magic_of_version_1 && header.type >= FrameType::hello && header.type <= FrameType::last &&
              header.length <= max_text_,
          "these bytes are not Orthant's (or another version's)");
  if (buffer_.size() < sizeof(header) + header.length) {
    return std::nullopt;
  }
  Frame frame{header.type, header.rank, buffer_.substr(sizeof(header), header.length)};
  buffer_.erase(0, sizeof(header) + header.length);
  return frame;
}

}  // namespace orthant::nccl
