// What this machine offers a run, inside the limits that were set for this process (affinity, cgroup).
#pragma once

#include <cstdint>
#include <filesystem>

namespace modelet::agent {

// Cores this process may use: affinity mask and cgroup quota (v2's cpu.max, v1's cpu.cfs_quota_us), at
// least 1.
uint32_t usable_cores();

// Bytes a run may use: what is available now, or the tightest cgroup v2 limit (memory.max) minus its use if
// that is less.
uint64_t usable_memory_bytes();

struct Speed {
  double gflops = 0;       // of all threads together, in the kernels of the training step
  double memory_gbps = 0;  // GB/s streamed from memory, all threads together
};

// Measures for about 0.1 s on `threads` threads; where a cgroup's quota is less than these, what it leaves of
// that.
Speed measure_speed(uint32_t threads);

// The cgroup v2 folder of this process, or an empty path.
std::filesystem::path cgroup_folder();

}  // namespace modelet::agent
