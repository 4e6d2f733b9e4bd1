// What the control groups of this process leave it, in the hierarchies of both versions that may be mounted:
// v2, or a controller of v1. The limit of a group holds for all groups below it, so the tightest on the way
// up counts.
#pragma once

#include <filesystem>

namespace modelet::agent {

// Where the kernel shows control groups; tests use other places.
struct CgroupFiles {
  std::filesystem::path root = "/sys/fs/cgroup";     // v2; of v1, the folders of its controllers
  std::filesystem::path self = "/proc/self/cgroup";  // the groups of this process, a line each hierarchy
};

// Cores by quota (v2's cpu.max, v1's cpu.cfs_quota_us); may be a fraction. Infinite: no limit.
double cgroup_cores(const CgroupFiles& files = {});

// Bytes that are left below the limits (v2's memory.max, v1's memory.limit_in_bytes), at least 0. Infinite:
// no limit. File pages that nobody has used lately count as free, as in what Kubernetes calls the working
// set, because the kernel gives them up first.
double cgroup_memory_bytes(const CgroupFiles& files = {});

}  // namespace modelet::agent
