// For programs that run with older C libraries (cmake/ModeletPortable.cmake). The archive of libstdc++ was compiled where
// the C library has arc4random (2.36), and calls it in std::random_device. This one does the same with getrandom(2).
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

extern "C" uint32_t arc4random() {
  uint32_t number = 0;
  // So few bytes come whole. A signal may interrupt only the wait for the first randomness after the machine's start.
  while (::getrandom(&number, sizeof number, 0) != sizeof number)
    if (errno != EINTR) std::abort();
  return number;
}
