#include "apps/serve/request_body.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "apps/serve/api_error.h"

namespace orthant {
namespace {

constexpr std::size_t longest_line = 1024;  // bytes: a chunk's size with its extensions, or a line of the trailer

class BodyReader {
 public:
  explicit BodyReader(ClientSocket& client) : client_(client) {}

  void take(std::size_t bytes) {
    std::array<char, 4096> some;
    while (bytes > 0) {
      const std::size_t got = read(some.data(), std::min(bytes, some.size()));
      fits_ = fits_ && body_.size() + got <= longest_body;
      if (fits_) {
        body_.append(some.data(), got);
      }
      bytes -= got;
    }
  }

  void take_chunks() {
    while (true) {
      std::string_view size = line();
      size = size.substr(0, size.find_first_of("; \t"));
      std::size_t bytes = 0;
      const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), bytes, 16);
      if (error != std::errc() || end != size.data() + size.size()) {
        refuse("a chunk's size is not a hexadecimal number");
      }
      if (bytes == 0) {
        break;
      }
      take(bytes);
      if (!line().empty()) {
        refuse("a chunk is longer than its size");
      }
    }
    while (!line().empty()) {  // the trailer
    }
  }

  std::string body() && {
    if (!fits_) {
      throw too_long();
    }
    return std::move(body_);
  }

 private:
  static ApiError too_long() { return {413, "the request's body is longer than 4 MiB"}; }
  [[noreturn]] void refuse(std::string_view why) const {
    if (!fits_) {
      throw too_long();
    }
    throw ApiError(400, fmt::format("the request's body: {}", why));
  }

  std::size_t read(char* bytes, std::size_t count) {
    const ssize_t got = client_.read(bytes, count);
    if (got <= 0) {
      refuse("it does not come to its end, not in a minute, or takes more than 8 MiB with the sizes of its chunks");
    }
    return static_cast<std::size_t>(got);
  }

  // Without its end. Valid until the next call.
  std::string_view line() {
    line_.clear();
    while (!line_.ends_with("\r\n")) {
      char next;
      read(&next, 1);
      line_ += next;
      if (line_.size() > longest_line) {
        refuse("a chunk's size or a line of the trailer is too long");
      }
    }
    return std::string_view(line_).substr(0, line_.size() - 2);
  }

  ClientSocket& client_;
  std::string body_, line_;
  bool fits_ = true;
};

}  // namespace

std::string read_body(ClientSocket& client, std::size_t length) {
  BodyReader reader(client);
  if (length == length_unknown) {
    reader.take_chunks();
  } else {
    reader.take(length);
  }
  return std::move(reader).body();
}

}  // namespace orthant
