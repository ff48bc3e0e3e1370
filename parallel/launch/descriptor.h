// Descriptor: a file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace orthant {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      value_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return value_; }
  bool is_open() const { return value_ >= 0; }
  int release() { return std::exchange(value_, -1); }
  void close() {
    if (value_ >= 0) {
      ::close(release());
    }
  }

 private:
  int value_ = -1;
};

}  // namespace orthant
