#include "core/checkpoint/disk.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "core/base/bytes_text.h"
#include "core/base/sync.h"
#include "core/checkpoint/checkpoint.h"

namespace orthant {
namespace {

[[noreturn]] void cannot(const char* what, const std::filesystem::path& path, int error) {
  fail("cannot {} '{}': {}", what, path.string(), std::generic_category().message(error));
}

void check(const char* what, const std::filesystem::path& path, const std::error_code& error) {
  require(!error, "cannot {} '{}': {}", what, path.string(), error.message());
}

}  // namespace

void Disk::create_folder(const std::filesystem::path& path) const {
  std::vector<std::filesystem::path> missing = {path};
  std::error_code error;
  for (std::filesystem::path above = path.parent_path(); !above.empty() && !std::filesystem::exists(above, error);) {
    missing.push_back(above);
    above = above.parent_path();
  }
  for (; !missing.empty(); missing.pop_back()) {
    const std::filesystem::path& folder = missing.back();
    before("create", folder);
    const bool made = std::filesystem::create_directory(folder, error);  // else another rank was faster
    check("create the folder", folder, error);
    if (made) {
      sync_folder(folder.has_parent_path() ? folder.parent_path() : ".");
    }
  }
}

bool has_room(const std::filesystem::space_info& there, std::uint64_t bytes) {
  return there.capacity == 0 || there.available >= bytes;
}

void Disk::require_room(const std::filesystem::path& folder, std::uint64_t bytes, std::string_view do_instead) const {
  before("room", folder);
  std::error_code error;
  const std::filesystem::space_info there = std::filesystem::space(folder, error);
  require(error || has_room(there, bytes),
          "{} are to be written to '{}', and its disk has room for {}: {}. Nothing was written",
          bytes_text(static_cast<std::int64_t>(bytes)), folder.parent_path().string(),
          bytes_text(static_cast<std::int64_t>(there.available)), do_instead);
}

void Disk::sync_folder(const std::filesystem::path& path) const {
  before("sync", path);
  orthant::sync_folder(path);
}

void Disk::sync_file(const std::filesystem::path& path) const {
  before("sync", path);
  orthant::sync_file(path);
}

void Disk::replace_file(const std::filesystem::path& path, std::string_view text) const {
  std::filesystem::path fresh = path;
  fresh += ".tmp";
  DiskFile file(*this, fresh);
  file.write(std::as_bytes(std::span(text)));
  file.sync_and_close();
  rename(fresh, path);
}

void Disk::rename(const std::filesystem::path& from, const std::filesystem::path& to) const {
  before("rename", from);
  std::error_code error;
  std::filesystem::rename(from, to, error);
  check("rename", from, error);
}

void Disk::remove_all(const std::filesystem::path& path) const {
  before("remove", path);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  check("remove", path, error);
}

struct DiskFile::Hash {
  Hash() : state(XXH3_createState()) { XXH3_64bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;
  XXH3_state_t* state;
};

DiskFile::DiskFile(const Disk& disk, const std::filesystem::path& path)
    : disk_(disk), path_(path), hash_(std::make_unique<Hash>()) {
  disk_.before("create", path_);
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) {
    cannot("create", path_, errno);
  }
}

DiskFile::~DiskFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void DiskFile::write(std::span<const std::byte> bytes) {
  XXH3_64bits_update(hash_->state, bytes.data(), bytes.size());
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    disk_.before("write", path_);
    const ssize_t done = ::write(file_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{64} << 20));
    if (done < 0 && errno != EINTR) {
      cannot("write", path_, errno);
    }
    bytes = bytes.subspan(std::max<ssize_t>(done, 0));
  }
}

void DiskFile::sync_and_close() {
  disk_.before("sync", path_);
  if (::fsync(file_) != 0) {
    cannot("sync", path_, errno);
  }
  const int failed = ::close(file_);
  file_ = -1;
  if (failed != 0) {
    cannot("close", path_, errno);
  }
}

void DiskFile::give_up() noexcept {
  if (file_ >= 0) {
    [[maybe_unused]] const int failed = ::ftruncate(file_, 0);
  }
}

std::uint64_t DiskFile::checksum() const {
  return XXH3_64bits_digest(hash_->state);
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

FileChecksum checksum_of_file(const std::filesystem::path& path) {
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  // Not waiting, so that a named pipe is met by the read below.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  int error = file < 0 ? errno : 0;
  FileChecksum found;
  for (ssize_t count = 1; count != 0 && error == 0;) {
    count = ::read(file, buffer.data(), buffer.size());
    if (count > 0) {
      XXH3_64bits_update(state, buffer.data(), static_cast<std::size_t>(count));
      found.bytes += static_cast<std::uint64_t>(count);
    } else if (count < 0 && errno != EINTR) {
      error = errno;
    }
  }
  found.checksum = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  if (file >= 0) {
    ::close(file);
  }
  if (error != 0) {
    throw CheckpointUnreadable(
        fmt::format("cannot read '{}': {}", path.string(), std::generic_category().message(error)));
  }
  return found;
}

}  // namespace orthant
