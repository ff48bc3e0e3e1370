#include "core/data/parts_folder.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/data/write_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

struct PartHeader {
  std::array<char, 8> magic = {'O', 'R', 'T', 'H', 'P', 'A', 'R', 'T'};
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;     // of tokens
  std::uint64_t checksum = 0;  // XXH3 of all that follows
};
static_assert(sizeof(PartHeader) == 32);

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

PartsFolder::PartsFolder(fs::path folder, const std::string& job) : folder_(std::move(folder)) {
  fs::create_directories(folder_);
  const fs::path lock = folder_ / "lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) {
    const int error = errno;
    fail("cannot make '{}': {}", lock.string(), std::generic_category().message(error));
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    fail("'{}' belongs to another process that makes the same file: wait for it, or give another output",
         folder_.string());
  }
  const fs::path known = folder_ / "job";
  if (text_of(known) == job) {
    return;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() == ".part") {
      fs::remove(entry.path());
    }
  }
  write_file(known, job);
}

PartsFolder::~PartsFolder() {
  if (lock_ >= 0) {
    ::close(lock_);
  }
}

fs::path PartsFolder::path_of(std::size_t shard) const {
  return folder_ / fmt::format("{:06}.part", shard);
}

void PartsFolder::put(std::size_t shard, std::span<const std::uint64_t> sizes,
                      std::span<const std::byte> tokens) const {
  PartHeader header;
  header.documents = sizes.size();
  header.bytes = tokens.size();
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, sizes.data(), sizes.size_bytes());
  XXH3_64bits_update(&state, tokens.data(), tokens.size());
  header.checksum = XXH3_64bits_digest(&state);
  write_file(path_of(shard), {std::as_bytes(std::span(&header, 1)), std::as_bytes(sizes), tokens});
}

std::optional<PartsFolder::Part> PartsFolder::finished(std::size_t shard) const {
  if (!fs::exists(path_of(shard))) {
    return std::nullopt;
  }
  Part part{.file = MappedFile(path_of(shard)), .sizes = {}, .tokens = {}};
  const std::span<const std::byte> bytes = part.file.bytes();
  PartHeader header;
  if (bytes.size() < sizeof header) {
    return std::nullopt;
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::span<const std::byte> body = bytes.subspan(sizeof header);
  if (header.magic != PartHeader{}.magic || header.documents > body.size() / sizeof(std::uint64_t) ||
      body.size() - header.documents * sizeof(std::uint64_t) != header.bytes ||
      XXH3_64bits(body.data(), body.size()) != header.checksum) {
    return std::nullopt;
  }
  part.sizes.resize(header.documents);
  if (header.documents > 0) {
    std::memcpy(part.sizes.data(), body.data(), header.documents * sizeof(std::uint64_t));
  }
  part.tokens = body.subspan(header.documents * sizeof(std::uint64_t));
  return part;
}

void PartsFolder::remove() {
  fs::remove_all(folder_);
}

}  // namespace orthant
