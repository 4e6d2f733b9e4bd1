// What this machine can offer to a run, within the limits of this process (affinity, cgroup, rlimit).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace modelet::shard {
class Model;
}

namespace modelet::agent {

// The cores that this process may use, by its affinity mask and the quotas of its control groups
// (node_agent/machine/cgroup.h). At least 1.
uint32_t usable_cores();

// The memory that this process may still use: what the tightest limit leaves. The limits are those of the
// machine, of control groups, and of this process. A limit of the process counts what has an address, whether
// or not it is in memory (RLIMIT_AS: mapped files as well; RLIMIT_DATA: without them).
struct UsableMemory {
  uint64_t bytes = 0;
  std::string limit;  // in words, with the command or the file that sets it
};
// Nothing if no limit is known: `meminfo`, the kernel's file, is not everywhere.
std::optional<UsableMemory> usable_memory(const std::filesystem::path& meminfo = "/proc/meminfo");
// The bytes, for those who have to offer a number. Throws Error with the cure if no limit is known.
uint64_t known_memory(const std::string& cure);

// Throws Error, which names `what` and the limit, if `bytes` of memory cannot be had. `cure`: what to ask for
// instead.
void require_memory(uint64_t bytes, const std::string& what, const std::string& cure);
// Loads a model, if there is memory for it; see its constructor. `threads` 0: all usable cores.
shard::Model load_model(const std::string& path, unsigned threads, const std::string& labels = {});

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
