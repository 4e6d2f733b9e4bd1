// What the control groups of this process leave to it. Both versions of control groups may be mounted: v2,
// or controllers of v1. A control group's limit holds for all below it, so the tightest limit on the way up
// counts.
#pragma once

#include <filesystem>
#include <limits>
#include <string>

namespace modelet::agent {

// Where the kernel shows control groups. Tests use other places.
struct CgroupFiles {
  std::filesystem::path root = "/sys/fs/cgroup";  // v2; for v1 the folders of its controllers
  // The control groups of this process, one line for each hierarchy.
  std::filesystem::path self = "/proc/self/cgroup";
};

// The cores that quotas allow (cpu.max in v2, cpu.cfs_quota_us in v1). It may be a fraction. Infinite: no
// limit.
double cgroup_cores(const CgroupFiles& files = {});

// What the tightest limit leaves (memory.max and memory.high in v2, memory.limit_in_bytes in v1). File pages that
// nobody has used lately count as free, as in what Kubernetes calls the working set, because the kernel gives them
// up first.
struct CgroupMemory {
  double bytes = std::numeric_limits<double>::infinity();  // at least 0; infinite: no limit
  std::string limit;                                       // the file with the limit
};
CgroupMemory cgroup_memory(const CgroupFiles& files = {});

}  // namespace modelet::agent
