// Descriptor: owns a file descriptor. Its destructor closes it, which also releases its locks, unless
// release() was called.
#pragma once

#include <unistd.h>

#include <utility>

namespace modelet {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}  // negative: none
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace modelet
