#include "core/base/mapped_file.h"

#include <fcntl.h>
#include <orthant/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace orthant {
namespace {

[[noreturn]] void cannot_map(const char* what, const std::filesystem::path& path, int error) {
  throw ConfigError(fmt::format("cannot {} '{}': {}", what, path.string(), std::generic_category().message(error)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    cannot_map("open", path, errno);
  }
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(file);
    throw ConfigError(fmt::format("'{}' is not a regular file{}", path.string(),
                                  S_ISDIR(status.st_mode) ? ", but a folder"
                                                          : ": files are read in any order, and again, so write what a "
                                                            "pipe or a device gives to a file first"));
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (address == MAP_FAILED) {
      cannot_map("map", path, error);
    }
    data_ = static_cast<const std::byte*>(address);
  } else {
    ::close(file);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace orthant
