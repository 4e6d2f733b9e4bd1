#include "node_agent/capacity.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/error.h"
#include "shard/kernels/kernels.h"

namespace modelet::agent {
namespace {

constexpr double kMeasureSeconds = 0.05;  // of each of the two measurements
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

// Runs `body` on `threads` threads at once for about kMeasureSeconds; returns the sum of what they did per
// second.
double rate_of(uint32_t threads, const std::function<double()>& body) {
  std::vector<double> rates(threads);
  std::vector<std::thread> workers;
  for (uint32_t i = 0; i < threads; ++i)
    workers.emplace_back([&rate = rates[i], &body] {
      body();  // allocates and warms up
      const Stopwatch watch;
      double done = 0;
      while (watch.seconds() < kMeasureSeconds) done += body();
      rate = done / watch.seconds();
    });
  for (std::thread& worker : workers) worker.join();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

// Floating-point operations of one small product of the shape that the output layer has.
double multiply() {
  constexpr size_t kM = 64, kN = 128, kK = 128;
  thread_local AlignedVector<float> a(kM * kK, 0.5f), b(kK * kN, 0.25f), c(kM * kN);
  shard::kernels::gemm({.m = kM,
                        .n = kN,
                        .k = kK,
                        .a = a.data(),
                        .a_row = kK,
                        .a_col = 1,
                        .b = b.data(),
                        .b_row = kN,
                        .c = c.data(),
                        .c_row = kN});
  return 2.0 * kM * kN * kK;
}

// Bytes read and written by y += a x over arrays larger than a core's share of the caches.
double stream() {
  constexpr size_t kFloats = size_t{2} << 20;
  thread_local AlignedVector<float> x(kFloats, 1.0f), y(kFloats);
  shard::kernels::axpy(1e-3f, x.data(), y.data(), kFloats);
  return 3.0 * kFloats * sizeof(float);
}

}  // namespace

std::filesystem::path cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::/")) return std::filesystem::path(kCgroupRoot) / line.substr(4);
  return {};
}

uint32_t usable_cores() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  double cores = ::sched_getaffinity(0, sizeof affinity, &affinity) == 0
                     ? CPU_COUNT(&affinity)
                     : std::max(1u, std::thread::hardware_concurrency());
  for_each_cgroup(
      [&](const std::filesystem::path& folder) { cores = std::min(cores, quota_cores(folder / "cpu.max")); });
  return static_cast<uint32_t>(std::max(1.0, std::floor(cores)));
}

uint64_t usable_memory_bytes() {
  double bytes = static_cast<double>(available_memory());
  for_each_cgroup([&](const std::filesystem::path& folder) {
    const double limit = number_in(folder / "memory.max", std::numeric_limits<double>::infinity());
    bytes = std::min(bytes, std::max(0.0, limit - number_in(folder / "memory.current", 0)));
  });
  return static_cast<uint64_t>(bytes);
}

Speed measure_speed(uint32_t threads) {
  constexpr double kGiga = 1e9;
  return {rate_of(threads, multiply) / kGiga, rate_of(threads, stream) / kGiga};
}

}  // namespace modelet::agent
