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
constexpr const char* kOldCpuRoot = "/sys/fs/cgroup/cpu";  // of cgroup v1

// Calls `visit` with a folder and those above it, up to `root`.
void for_each_above(std::filesystem::path folder, const std::string& root,
                    const std::function<void(const std::filesystem::path&)>& visit) {
  for (; folder.string().starts_with(root); folder = folder.parent_path()) visit(folder);
}

// Folder of this process below `root`, for the hierarchy whose line in /proc/self/cgroup `is_it` knows by
// what is before the path.
std::filesystem::path folder_below(const std::string& root,
                                   const std::function<bool(const std::string&)>& is_it) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t path = line.find(":/");
    if (path == std::string::npos || !is_it(line.substr(0, path))) continue;
    const std::string relative = line.substr(path + 2);
    return relative.empty() ? std::filesystem::path(root) : std::filesystem::path(root) / relative;
  }
  return {};
}

bool is_old_cpu_hierarchy(const std::string& head) {  // "1:cpu", "3:cpu,cpuacct"
  return (',' + head.substr(head.find(':') + 1) + ',').find(",cpu,") != std::string::npos;
}

// First number of a file; `missing` if there is no file or it says "max".
double number_in(const std::filesystem::path& path, double missing) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : missing;
}

// Cores of a quota for each period; no limit where one of them is missing, or is v1's -1.
double quota_cores(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

// What this process's cgroups leave it of the cores, v2's or v1's; may be a fraction.
double quota_of_cgroups() {
  double cores = std::numeric_limits<double>::infinity();
  for_each_above(cgroup_folder(), kCgroupRoot, [&](const std::filesystem::path& folder) {
    std::ifstream file(folder / "cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period) cores = std::min(cores, quota_cores(quota, period));
  });
  for_each_above(folder_below(kOldCpuRoot, is_old_cpu_hierarchy), kOldCpuRoot,
                 [&](const std::filesystem::path& folder) {
                   cores = std::min(cores, quota_cores(number_in(folder / "cpu.cfs_quota_us", 0),
                                                       number_in(folder / "cpu.cfs_period_us", 0)));
                 });
  return cores;
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
  return folder_below(kCgroupRoot, [](const std::string& head) { return head == "0:"; });
}

namespace {

// May be a fraction.
double core_limit() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  const double cores = ::sched_getaffinity(0, sizeof affinity, &affinity) == 0
                           ? CPU_COUNT(&affinity)
                           : std::max(1u, std::thread::hardware_concurrency());
  return std::min(cores, quota_of_cgroups());
}

}  // namespace

uint32_t usable_cores() { return static_cast<uint32_t>(std::max(1.0, std::floor(core_limit()))); }

uint64_t usable_memory_bytes() {
  double bytes = static_cast<double>(available_memory());
  for_each_above(cgroup_folder(), kCgroupRoot, [&](const std::filesystem::path& folder) {
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
