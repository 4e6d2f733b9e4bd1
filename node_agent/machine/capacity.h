// What this machine offers to a run, inside the limits of this process (affinity, cgroup).
#pragma once

#include <cstdint>

namespace modelet::agent {

// Cores this process may use: affinity mask and quotas of control groups (node_agent/machine/cgroup.h), at
// least 1.
uint32_t usable_cores();

// Bytes that a run may use: what is available now, or what the limits of control groups leave if that is
// less.
uint64_t usable_memory_bytes();

// Of all threads together.
struct Speed {
  double gflops = 0;       // products in fp32
  double bf16_gflops = 0;  // products with weights of bf16
  double memory_gbps = 0;  // GB/s of an optimiser that changes rows all over the memory
};

// Measures the kernels of the training step for about 0.4 s on `threads` threads, while no other program of
// this user does the same here (it waits at most a minute for them). If a cgroup's quota is smaller, the
// result is what it leaves.
Speed measure_speed(uint32_t threads);

}  // namespace modelet::agent
