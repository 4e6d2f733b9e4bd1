#include "shard/kernels/simd/tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace modelet::shard::kernels {

#if defined(__x86_64__) && defined(__linux__)
bool machine_has_tiles() {
  static const bool has = [] {
    constexpr unsigned kTiles = 1u << 24, kBf16OnTiles = 1u << 22;   // CPUID leaf 7, EDX
    constexpr unsigned kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl(2); for all threads
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kTiles) == 0 || (d & kBf16OnTiles) == 0) return false;
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}
#else
bool machine_has_tiles() { return false; }
#endif

}  // namespace modelet::shard::kernels
