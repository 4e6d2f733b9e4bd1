// What this machine can offer to a run, within the limits of this process (affinity, cgroup).
#pragma once

#include <cstdint>
#include <functional>

namespace modelet::agent {

// The cores that this process may use, by its affinity mask and the quotas of its control groups
// (node_agent/machine/cgroup.h). At least 1.
uint32_t usable_cores();

// The bytes that a run may use: what is available now, or what the limits of control groups leave if that
// is less.
uint64_t usable_memory_bytes();

// The speed of all threads together.
struct Speed {
  double gflops = 0;       // products in fp32
  double bf16_gflops = 0;  // products with weights of bf16
  double memory_gbps = 0;  // GB/s of an optimiser that changes rows all over the memory
};

// Measures the kernels of the training step for about 0.4 s on `threads` threads. Programs of this user
// take turns at measuring on this machine, and this one waits at most a minute for its turn. If a cgroup's
// quota allows less, the result is what the quota allows.
Speed measure_speed(uint32_t threads, const std::function<void()>& check = {});

}  // namespace modelet::agent
