// What the control groups of this process leave to it. Both versions of control groups may be mounted: v2,
// or controllers of v1. A control group's limit holds for all below it, so the tightest limit on the way up
// counts.
#pragma once

#include <filesystem>

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

// The bytes that the limits leave (memory.max in v2, memory.limit_in_bytes in v1), at least 0. Infinite: no
// limit. File pages that nobody has used lately count as free, as in what Kubernetes calls the working set,
// because the kernel gives them up first.
double cgroup_memory_bytes(const CgroupFiles& files = {});

}  // namespace modelet::agent
