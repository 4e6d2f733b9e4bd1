#include "node_agent/machine/cgroup.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Calls `visit` with the control group of this process and with those above it. `controller`: the v1
// controller; empty: v2.
void for_each_cgroup(const CgroupFiles& files, const std::string& controller,
                     const std::function<void(const fs::path&)>& visit) {
  std::ifstream lines(files.self);
  for (std::string line; std::getline(lines, line);) {  // "0::/a/b"; "3:cpu,cpuacct:/a/b"
    const size_t names = line.find(':'), path = line.find(":/");
    if (path == std::string::npos) continue;
    const std::string list = names < path ? line.substr(names + 1, path - names - 1) : "";
    const bool is_it = controller.empty()
                           ? line.starts_with("0::")
                           : (',' + list + ',').find(',' + controller + ',') != std::string::npos;
    if (!is_it) continue;
    const fs::path root = files.root / controller;
    fs::path below = fs::path(line.substr(path + 2)).lexically_normal().relative_path();
    for (; !below.empty() && *below.begin() != ".." && below != "."; below = below.parent_path())
      visit(root / below);
    visit(root);
    return;
  }
}

// The first number of a file; `missing` if there is no such file or it says "max".
double number_in(const fs::path& path, double missing) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : missing;
}

// The value of a key in a file of "key value" lines; 0 if it is missing.
double value_of(const fs::path& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  for (double value = 0; file >> key >> value;)
    if (key == wanted) return value;
  return 0;
}

// The cores that a quota for each period means. No limit if a value is missing, or is -1 as in v1.
double quota_cores(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kNoLimit;
}

double left(double limit, double used, double reclaimable) {
  return std::max(0.0, limit - std::max(0.0, used - reclaimable));
}

}  // namespace

double cgroup_cores(const CgroupFiles& files) {
  double cores = kNoLimit;
  for_each_cgroup(files, "", [&](const fs::path& cgroup) {
    std::ifstream file(cgroup / "cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period) cores = std::min(cores, quota_cores(quota, period));
  });
  for_each_cgroup(files, "cpu", [&](const fs::path& cgroup) {
    cores = std::min(cores, quota_cores(number_in(cgroup / "cpu.cfs_quota_us", 0),
                                        number_in(cgroup / "cpu.cfs_period_us", 0)));
  });
  return cores;
}

CgroupMemory cgroup_memory(const CgroupFiles& files) {
  CgroupMemory tightest;
  const auto take = [&](const fs::path& limit, const char* used, const char* reclaimable) {
    const fs::path cgroup = limit.parent_path();
    const double bytes = left(number_in(limit, kNoLimit), number_in(cgroup / used, 0),
                              value_of(cgroup / "memory.stat", reclaimable));
    if (bytes < tightest.bytes) tightest = {bytes, limit.string()};
  };
  for_each_cgroup(files, "", [&](const fs::path& cgroup) {
    for (const char* limit : {"memory.max", "memory.high"})
      take(cgroup / limit, "memory.current", "inactive_file");
  });
  // In v1 "no limit" is a number larger than any machine's memory.
  for_each_cgroup(files, "memory", [&](const fs::path& cgroup) {
    take(cgroup / "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
  });
  return tightest;
}

}  // namespace modelet::agent
