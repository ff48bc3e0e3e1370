// For readers that want a file: one in memory, rewritten for each input.
#pragma once

#include <orthant/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace orthant::fuzz {

class ScratchFile {
 public:
  ScratchFile(const void* data, std::size_t size) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0 && write(descriptor_, data, size) == static_cast<ssize_t>(size), "no file in memory");
  }
  ~ScratchFile() { close(descriptor_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace orthant::fuzz
