// The bytes of a shared library, looked at before the dynamic linker is: it maps what the headers say and runs what
// lies there, and dies of a signal where they promise more than the file has.
//
// Nothing here trusts a number of the file: each range is held against the file's size before it is read.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace orthant {

using Bytes = std::span<const char>;

class ElfImage {
 public:
  // Checks that `file` is a shared library of this machine, whole as far as its headers tell: program headers, section
  // headers and what they describe, the dynamic section and its tables. Bytes behind the end are nobody's: see size().
  // Keeps a view of `file`. Errors: Error with what is wrong.
  explicit ElfImage(Bytes file);

  // Where the library ends: the last byte that a header describes, or a header itself.
  std::uint64_t size() const { return size_; }

  // Calls `visit` for each note in the loaded part: name, type, descriptor. Errors: Error for notes without an end.
  void notes(const std::function<void(std::string_view, std::uint32_t, Bytes)>& visit) const;

 private:
  Bytes file_;
  std::uint64_t size_ = 0;
};

}  // namespace orthant
