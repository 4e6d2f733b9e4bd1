#include "node_agent/machine/capacity.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/parallel/thread_pool.h"
#include "node_agent/machine/cgroup.h"
#include "node_agent/machine/turn.h"
#include "shard/bench/step_kernels.h"
#include "shard/inference/model.h"

namespace modelet::agent {
namespace {

constexpr double kMeasureSeconds = 0.05;  // of each measurement
// Seconds to wait for other programs that measure: time for a hundred agents.
constexpr double kLongestWait = 60;
// More than the caches of a machine with that many threads can hold.
constexpr size_t kRowBytes = size_t{64} << 20, kRowBytesOfThread = size_t{16} << 20;

// Infinite: not known.
double available_memory(const std::filesystem::path& meminfo) {
  std::ifstream file(meminfo);
  std::string key, unit;
  for (uint64_t kib = 0; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return static_cast<double>(kib) * 1024;
  return HUGE_VAL;
}

// What a limit of this process leaves. `used`: the field of /proc/self/statm that counts against it, in pages.
double left_of(__rlimit_resource resource, size_t used) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return HUGE_VAL;
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  for (size_t field = 0; field <= used; ++field) file >> pages;
  return std::max(0.0, static_cast<double>(limit.rlim_cur) - pages * static_cast<double>(::getpagesize()));
}

// The number of cores that this process may use. It may be a fraction.
double core_limit() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  const double cores = ::sched_getaffinity(0, sizeof affinity, &affinity) == 0
                           ? CPU_COUNT(&affinity)
                           : std::max(1u, std::thread::hardware_concurrency());
  return std::min(cores, cgroup_cores());
}

}  // namespace

uint32_t usable_cores() { return static_cast<uint32_t>(std::max(1.0, std::floor(core_limit()))); }

std::optional<UsableMemory> usable_memory(const std::filesystem::path& meminfo) {
  constexpr double kNoLimit = 0x1p63;
  constexpr size_t kSize = 0, kData = 5;  // fields of /proc/self/statm
  double bytes = available_memory(meminfo);
  std::string limit = "this machine";
  const auto take = [&](double left, const std::string& name) {
    if (left < bytes) std::tie(bytes, limit) = std::pair(left, name);
  };
  const CgroupMemory cgroup = cgroup_memory();
  take(cgroup.bytes, "the control group's limit " + cgroup.limit);
  take(left_of(RLIMIT_AS, kSize), "this process's limit RLIMIT_AS (ulimit -v)");
  take(left_of(RLIMIT_DATA, kData), "this process's limit RLIMIT_DATA (ulimit -d)");
  if (bytes >= kNoLimit) return std::nullopt;
  return UsableMemory{static_cast<uint64_t>(bytes), limit};
}

uint64_t known_memory(const std::string& cure) {
  if (const auto usable = usable_memory()) return usable->bytes;
  throw Error("the memory of this machine is not known, because /proc/meminfo has no MemAvailable: " + cure);
}

void require_memory(uint64_t bytes, const std::string& what, const std::string& cure) {
  const auto usable = usable_memory();
  if (!usable || bytes <= usable->bytes) return;
  throw Error("the memory is too small: " + what + " takes " + std::to_string(bytes >> 20) + " MiB, and " +
              usable->limit + " leaves " + std::to_string(usable->bytes >> 20) + " MiB; " + cure);
}

shard::Model load_model(const std::string& path, unsigned threads, const std::string& labels) {
  require_memory(shard::Model::bytes_to_load(path), "the model of " + path,
                 "end other programs, raise the limit, or ask a smaller model");
  return shard::Model(path, threads > 0 ? threads : usable_cores(), labels);
}

Speed measure_speed(uint32_t threads, const std::function<void()>& check) {
  namespace bench = shard::bench;
  // The benches give the speed while the threads run. A quota lets the threads run for only a part of the
  // time.
  const double giga = 1e9 / std::min(1.0, core_limit() / threads);
  // Agents that start together on one machine would each measure what the others leave.
  const auto folder = runtime_folder();
  const auto turn = folder ? wait_for_turn(*folder, "measuring.lock", kLongestWait, check) : std::nullopt;
  ThreadPool pool(threads);
  // Measures twice, because a thread that has just begun may share a core with another one for a tenth of a
  // second.
  Speed best;
  for (int round = 0; round < 2; ++round) {
    if (check) check();
    const auto keep = [giga](double& rate, double per_second) { rate = std::max(rate, per_second / giga); };
    keep(best.gflops, bench::logits_flops(pool, {}, Precision::kFp32, kMeasureSeconds));
    keep(best.bf16_gflops, bench::logits_flops(pool, {}, Precision::kBf16, kMeasureSeconds));
    keep(best.memory_gbps,
         bench::update_bytes(pool, {}, kRowBytes + kRowBytesOfThread * threads, kMeasureSeconds));
  }
  return best;
}

}  // namespace modelet::agent
