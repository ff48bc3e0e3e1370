#include "core/modules/read_library.h"

#include <orthant/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/base/keyed_hash.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view stamp_name = "orthant-sha256:";
constexpr std::size_t stamp_size = stamp_name.size() + 64 + 1;
constexpr std::uintmax_t most_bytes = std::uintmax_t{2} << 30;  // code of this machine reaches no further

void check_stamp(Bytes file, std::uint64_t size) {
  const std::string_view stamp(file.data() + size, file.size() - size);
  if (stamp.empty()) {
    return;  // built by other means, or stripped
  }
  require(stamp.size() == stamp_size && stamp.starts_with(stamp_name) && stamp.back() == '\n',
          "cut short or damaged: {} bytes behind its end are no whole checksum", stamp.size());
  const std::string_view expected = stamp.substr(stamp_name.size(), 64);
  const std::string found = sha256_hex({file.data(), size});
  require(found == expected,
          "its content is not what was built: SHA-256 {}..., expected {}...: copy it or build it again; a tool that "
          "changes a library must run before OrthantStamp.cmake",
          found.substr(0, 12), expected.substr(0, 12));
}

// Two texts, each with a zero byte behind it, and nothing else.
std::pair<std::string, std::string> parse_texts(Bytes descriptor) {
  const std::string_view texts(descriptor.data(), descriptor.size());
  const std::size_t first = texts.find('\0');
  const std::size_t second = first == texts.npos ? texts.npos : texts.find('\0', first + 1);
  require(second != texts.npos && second + 1 == texts.size(),
          "cut short or damaged: a note of Orthant's has another form");
  return {std::string(texts.substr(0, first)), std::string(texts.substr(first + 1, second - first - 1))};
}

LibraryNote parse_note(Bytes descriptor) {
  LibraryNote note;
  require(descriptor.size() >= sizeof note.abi, "cut short or damaged: a note of Orthant's has {} bytes",
          descriptor.size());
  std::memcpy(&note.abi, descriptor.data(), sizeof note.abi);
  std::tie(note.kind, note.build) = parse_texts(descriptor.subspan(sizeof note.abi));
  return note;
}

}  // namespace

std::optional<LibraryNote> read_library(Bytes file) {
  const ElfImage image(file);
  check_stamp(file, image.size());
  std::optional<LibraryNote> found;
  std::map<std::string, std::string> headers;
  image.notes([&](std::string_view name, std::uint32_t type, Bytes descriptor) {
    if (name != std::string_view("Orthant\0", 8)) {
      return;
    }
    if (type == 1) {
      require(!found, "it has two notes of Orthant's: a library is one plugin, communicator or device");
      found = parse_note(descriptor);
    } else if (type == 2) {
      const auto [group, hash] = parse_texts(descriptor);
      const std::string& first = headers.emplace(group, hash).first->second;
      require(first == hash,
              "its objects were compiled with unlike headers of the group \"{}\", {} and {}: build all of them again",
              group, first, hash);
    }
  });
  if (found) {
    found->headers = std::move(headers);
  }
  return found;
}

std::string read_library_file(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  require(status.type() != fs::file_type::not_found, "no such file");
  require(!error, "{}", error.message());
  require(status.type() == fs::file_type::regular, "not a regular file");  // opening a pipe would wait
  const std::uintmax_t size = fs::file_size(file, error);
  require(!error && size <= most_bytes, "a file of {} bytes is no library", size);
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  const int reason = errno;
  require(in.is_open(), "cannot be read: {}", std::strerror(reason));
  std::string content(size, '\0');
  in.read(content.data(), static_cast<std::streamsize>(size));
  require(in.gcount() == static_cast<std::streamsize>(size), "cannot be read: {} of {} bytes", in.gcount(), size);
  return content;
}

}  // namespace orthant
