#include "node_agent/capacity.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "base/error.h"
#include "shard/bench/machine_rates.h"
#include "shard/bench/step_kernels.h"
#include "shard/thread_pool.h"

namespace modelet::agent {
namespace {

constexpr double kMeasureSeconds = 0.05;           // of each of the two measurements
constexpr size_t kStreamBytes = size_t{32} << 20;  // a thread: more than a core's share of the caches
constexpr const char* kCgroupRoot = "/sys/fs/cgroup";

// Limits of this process's cgroup and of those above it: calls `visit` with each folder.
void for_each_cgroup(const std::function<void(const std::filesystem::path&)>& visit) {
  for (std::filesystem::path folder = cgroup_folder(); folder.string().starts_with(kCgroupRoot);
       folder = folder.parent_path())
    visit(folder);
}

// First number of a file; `missing` if there is no file or it says "max".
double number_in(const std::filesystem::path& path, double missing) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : missing;
}

// Cores of "QUOTA PERIOD" in cpu.max.
double quota_cores(const std::filesystem::path& path) {
  std::ifstream file(path);
  double quota = 0, period = 0;
  return file >> quota >> period && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (uint64_t kib = 0; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  throw Error("/proc/meminfo: no MemAvailable; give the memory limit with --memory-mib");
}

}  // namespace

std::filesystem::path cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::/")) return std::filesystem::path(kCgroupRoot) / line.substr(4);
  return {};
}

namespace {

// May be a fraction.
double core_limit() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  double cores = ::sched_getaffinity(0, sizeof affinity, &affinity) == 0
                     ? CPU_COUNT(&affinity)
                     : std::max(1u, std::thread::hardware_concurrency());
  for_each_cgroup(
      [&](const std::filesystem::path& folder) { cores = std::min(cores, quota_cores(folder / "cpu.max")); });
  return cores;
}

}  // namespace

uint32_t usable_cores() { return static_cast<uint32_t>(std::max(1.0, std::floor(core_limit()))); }

uint64_t usable_memory_bytes() {
  double bytes = static_cast<double>(available_memory());
  for_each_cgroup([&](const std::filesystem::path& folder) {
    const double limit = number_in(folder / "memory.max", std::numeric_limits<double>::infinity());
    bytes = std::min(bytes, std::max(0.0, limit - number_in(folder / "memory.current", 0)));
  });
  return static_cast<uint64_t>(bytes);
}

Speed measure_speed(uint32_t threads) {
  namespace bench = shard::bench;
  // The benches tell what is reached while the threads run. A quota lets them run for a part of the time
  // only.
  const double giga = 1e9 / std::min(1.0, core_limit() / threads);
  shard::ThreadPool pool(threads);
  return {
      .gflops = bench::logits_flops(pool, {}, kMeasureSeconds) / giga,
      .memory_gbps =
          bench::stream_bytes(pool, bench::Stream::kUpdate, kStreamBytes * threads, kMeasureSeconds) / giga};
}

}  // namespace modelet::agent
