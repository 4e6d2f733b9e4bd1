#include "node_agent/machine/host_load.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr int kGuestNice = 1;
constexpr auto kGuestName = "modelet-agent";
constexpr int kLooksBetweenScans = 5;  // looks for new agents

std::set<int> own_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::set<int> cpus;
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.insert(cpu);
  return cpus;
}

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

struct ProcessTimes {
  std::string name;
  double ticks = 0;
  int nice = 0;
};

// proc(5), /proc/PID/stat: "4711 (name) S ...". A name may contain blanks and parentheses.
std::optional<ProcessTimes> times_of(const fs::path& process) {
  constexpr size_t kState = 3, kUser = 14, kSystem = 15, kNice = 19;  // numbers of fields
  std::ifstream file(process / "stat");
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  std::istringstream rest(line.substr(close + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() <= kNice - kState) return std::nullopt;
  const auto field = [&](size_t number) { return std::atof(fields[number - kState].c_str()); };
  return ProcessTimes{line.substr(open + 1, close - open - 1), field(kUser) + field(kSystem),
                      static_cast<int>(field(kNice))};
}

// The CPUs that a process may use: the line "Cpus_allowed_list: 0-3,8" of its status. Empty: not known.
std::set<int> cpus_of(const fs::path& process) {
  constexpr std::string_view kKey = "Cpus_allowed_list:";
  std::ifstream file(process / "status");
  std::string line;
  while (std::getline(file, line) && !line.starts_with(kKey)) {
  }
  std::set<int> cpus;
  if (!line.starts_with(kKey)) return cpus;
  std::istringstream ranges(line.substr(kKey.size()));
  for (int first = 0; ranges >> first; ranges.ignore(1, ',')) {
    int last = first;
    if (ranges.peek() == '-') ranges.ignore() >> last;
    for (int cpu = first; cpu <= std::min(last, CPU_SETSIZE - 1); ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

// The seconds in which some process waited for what the file is about; -1: not known. It begins with "some avg10=...
// total=MICROSECONDS".
double seconds_waited(const fs::path& pressure) {
  std::ifstream file(pressure);
  std::string line;
  std::getline(file, line);
  const size_t total = line.find("total=");
  if (!line.starts_with("some") || total == std::string::npos) return -1;
  return std::atof(line.c_str() + total + 6) / 1e6;
}

// The share of `seconds` that lies between two values of seconds_waited(); -1: not known.
double share_waited(double before, double after, double seconds) {
  return before < 0 || after < 0 ? -1 : std::clamp((after - before) / seconds, 0.0, 1.0);
}

}  // namespace

void mark_as_guest() { ::setpriority(PRIO_PROCESS, 0, kGuestNice); }

HostLoad::HostLoad(fs::path proc, std::set<int> cpus, int self)
    : proc_(std::move(proc)),
      cpus_(std::move(cpus)),
      self_(self),
      tick_(1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK))) {
  guests_[self_] = {};
}

HostLoad::HostLoad() : HostLoad("/proc", own_cpus(), ::getpid()) {}

std::optional<HostLoad::Times> HostLoad::read(double now) const {
  std::ifstream file(proc_ / "stat");
  Times times{.at = now,
              .waited = seconds_waited(proc_ / "pressure" / "cpu"),
              .waited_for_memory = seconds_waited(proc_ / "pressure" / "memory")};
  bool any = false;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream fields(line.substr(3));
    int cpu = 0;
    double user = 0, nice = 0, system = 0, idle = 0, io_wait = 0, irq = 0, soft_irq = 0, steal = 0;
    if (line.starts_with("cpu ") ||
        !(fields >> cpu >> user >> nice >> system >> idle >> io_wait >> irq >> soft_irq >> steal) ||
        !cpus_.contains(cpu))
      continue;
    any = true;
    times.busy += (user + nice + system + irq + soft_irq + steal) * tick_;
  }
  return any ? std::optional(times) : std::nullopt;
}

// The share of the process's CPUs that this process may use, too. 1 if the system does not tell.
double HostLoad::share_of_cpus(const fs::path& process) const {
  const std::set<int> theirs = cpus_of(process);
  if (theirs.empty()) return 1;
  const auto common = std::ranges::count_if(theirs, [this](int cpu) { return cpus_.contains(cpu); });
  return static_cast<double>(common) / static_cast<double>(theirs.size());
}

// Seconds of CPU time that guests used on the CPUs of this process since the last call.
double HostLoad::guests_used() {
  if (looks_++ % kLooksBetweenScans == 0) {
    std::error_code failure;
    for (fs::directory_iterator entry(proc_, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      const auto id = number_of(entry->path().filename().native());
      if (!id || guests_.contains(*id)) continue;
      if (const auto times = times_of(entry->path());
          times && times->name == kGuestName && times->nice >= kGuestNice)
        guests_[*id] = {times->ticks * tick_, share_of_cpus(entry->path())};
    }
  }
  double used = 0;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const auto times = times_of(proc_ / std::to_string(guest->first));
    if (!times && guest->first != self_) {
      guest = guests_.erase(guest);
      continue;
    }
    if (times) {
      used += guest->second.share * std::max(0.0, times->ticks * tick_ - guest->second.used);
      guest->second.used = times->ticks * tick_;
    }
    ++guest;
  }
  return used;
}

std::optional<HostSample> HostLoad::sample(double now) {
  const std::optional<Times> times = read(now);
  const double own = guests_used();
  const std::optional<Times> last = std::exchange(last_, times);
  if (!times || !last || times->at <= last->at) return std::nullopt;
  const double seconds = times->at - last->at, cores = static_cast<double>(cpus_.size());
  HostSample sample{.cores = cores};
  sample.others = std::clamp((times->busy - last->busy - own) / seconds, 0.0, cores);
  sample.pressure = share_waited(last->waited, times->waited, seconds);
  sample.memory_pressure = share_waited(last->waited_for_memory, times->waited_for_memory, seconds);
  return sample;
}

}  // namespace modelet::agent
