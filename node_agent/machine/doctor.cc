#include "node_agent/machine/doctor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <netdb.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/descriptor.h"
#include "base/system/process.h"
#include "base/text/printable.h"
#include "base/version.h"
#include "comm/security/keys.h"
#include "comm/transport/endpoint.h"
#include "comm/transport/zmq.h"
#include "node_agent/machine/capacity.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;
using comm::control::ClientSocket;

constexpr double kGibi = 1024.0 * 1024.0 * 1024.0;
constexpr double kLeastDisk = 1;               // GiB
constexpr uint64_t kLeastDescriptors = 4096;   // for a pool of some hundred nodes
constexpr int64_t kLeastTime = 1'764'547'200;  // 2025-12-01: this program is younger
constexpr const char* kSomePort = "9";         // where nobody listens, which is an answer as well

Finding well(std::string what, std::string found) { return {std::move(what), true, std::move(found), ""}; }
Finding ill(std::string what, std::string found, std::string mend) {
  return {std::move(what), false, std::move(found), std::move(mend)};
}

Finding look_at_versions() {
  return well("version", fmt::format("{}, messages {} to {}", kVersion, comm::control::kOldestControlVersion,
                                     comm::control::kControlVersion));
}

Finding look_at_clock() {
  const auto now = std::chrono::system_clock::now();
  const std::string time = utc_text(now);
  if (std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count() < kLeastTime)
    return ill("clock", "it is " + time + " here, which is long ago", "timedatectl set-ntp true");
  timex state{};
  const bool is_kept = ::adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  return well("clock", time + (is_kept ? ", kept by a time service"
                                       : ", not kept by a time service: times in logs may differ"));
}

Finding look_at_disk(const fs::path& work_dir) {
  const std::string what = "disk";
  const std::string another =
      fmt::format("--work-dir: a folder that this user may write to (now {})", work_dir.string());
  try {
    require_room(work_dir, 0);
  } catch (const Error& error) {
    return ill(what, error.what(), another);
  }
  fs::path there = fs::absolute(work_dir);
  while (!fs::exists(there) && there.has_relative_path()) there = there.parent_path();
  std::error_code failure;
  const auto space = fs::space(there, failure);
  if (failure) return ill(what, failure.message(), another);
  const double free = static_cast<double>(space.available) / kGibi;
  const std::string text = fmt::format("{:.1f} GiB free for {}", free, work_dir.string());
  return free >= kLeastDisk ? well(what, text)
                            : ill(what, text, "make room there, or give --work-dir a folder on another disk");
}

Finding look_at_descriptors() {
  const uint64_t limit = descriptor_limit();
  const std::string text = fmt::format("{} files and connections may be open", limit);
  return limit >= kLeastDescriptors
             ? well("descriptors", text)
             : ill("descriptors", text,
                   "LimitNOFILE=65536 in the unit, or: ulimit -n 65536 (a container: --ulimit nofile=65536)");
}

Finding look_at_threads() {
  const uint32_t cores = usable_cores();
  try {
    require_threads(2 * size_t{cores} + 8);
  } catch (const std::system_error&) {
    return ill("threads", fmt::format("too few threads may be started for {} cores", cores),
               "TasksMax=infinity in the unit, or: ulimit -u unlimited (a container: --pids-limit)");
  }
  return well("threads", fmt::format("{} cores may be used", cores));
}

// How an agent opens the data of runs beneath --data-root.
Finding look_at_openat2() {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH;
  const Descriptor root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const Descriptor opened(static_cast<int>(::syscall(SYS_openat2, root.get(), ".", &how, sizeof how)));
  if (opened.get() >= 0) return well("openat2", "the kernel has it");
  return ill("openat2",
             fmt::format("the kernel refuses it ({}), so no run can read data beneath --data-root",
                         std::strerror(errno)),
             "RestrictSUIDSGID=no in the unit, whose filter forbids it; otherwise Linux 5.6 or later");
}

std::string data_address_of(const DoctorOptions& options) {
  if (!options.data_address.empty()) return options.data_address;
  return comm::address_on_the_way_to(options.scheduler.endpoint);
}

Finding look_at_ports(const DoctorOptions& options) {
  try {
    const std::string address = data_address_of(options);
    const bool is_folder = address.starts_with("ipc://");
    comm::ZmqTransport({.bind = is_folder ? address + "/*" : fmt::format("tcp://{}:*", address)});
    return well("ports", fmt::format("a port of {} can be taken, where other nodes reach this one", address));
  } catch (const Error& error) {
    return ill(
        "ports", error.what(),
        "--data-address: an address of this machine that the other nodes reach ('ip address' lists them)");
  }
}

// Asks the scheduler who this is, as an enrolment without an invitation does.
Finding look_at_scheduler(const DoctorOptions& options) {
  namespace msg = comm::control;
  const std::string what = "scheduler", &endpoint = options.scheduler.endpoint;
  std::string trouble;
  try {
    ClientSocket socket(options.scheduler);
    uint64_t asked_over = 0;
    for (const Stopwatch watch; watch.seconds() < options.seconds;) {
      const auto answer = socket.receive(0.1);
      if (answer && std::holds_alternative<msg::EnrolledT>(*answer))
        return well(what, fmt::format("{} answers, and knows this key as '{}'", endpoint,
                                      printable(std::get<msg::EnrolledT>(*answer).name)));
      if (const auto* refused = answer ? std::get_if<msg::RefusedT>(&*answer) : nullptr) {
        if (!options.scheduler.keys) return well(what, endpoint + " answers, and has no keys");
        if (refused->reason.find("is a user's") != std::string::npos)
          return well(what, endpoint + " answers, and knows this key as a user's");
        return ill(
            what, fmt::format("{} answers: {}", endpoint, printable(refused->reason)),
            fmt::format(
                "modelet approve NAME (by an administrator), or the line 'agent {} NAME' in its allow-list",
                options.scheduler.keys->own.public_key));
      }
      if (socket.connections() != asked_over && socket.send(msg::EnrolT{{}, "doctor", {}}))
        asked_over = socket.connections();
    }
    trouble = socket.trouble();
  } catch (const Error& error) {
    trouble = error.what();
  }
  return ill(
      what,
      trouble.empty() ? fmt::format("nobody answers at {} within {:.0f} s", endpoint, options.seconds)
                      : trouble,
      fmt::format(
          "on its machine: systemctl status modelet-scheduler; on this one: nc -vz {}, and the firewall between",
          [&] {
            std::string place = endpoint.substr(endpoint.find("//") + 2);
            if (const size_t colon = place.rfind(':'); colon != place.npos) place[colon] = ' ';
            return place;
          }()));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

// How a connection to the peer ends: "" if something there answers, be it with a refusal.
std::string why_not_reached(const std::string& host, const std::string& port, double seconds) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int failure = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list); failure != 0)
    return ::gai_strerror(failure);
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(list);
  const Descriptor socket(::socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int result = ::connect(socket.get(), list->ai_addr, list->ai_addrlen) == 0 ? 0 : errno;
  if (result == EINPROGRESS) {
    pollfd wait{socket.get(), POLLOUT, 0};
    socklen_t size = sizeof result;
    if (::poll(&wait, 1, static_cast<int>(1000 * seconds)) <= 0) return "no answer";
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result, &size);
  }
  return result == 0 || result == ECONNREFUSED ? "" : std::strerror(result);
}

Finding look_at_peer(const std::string& peer, double seconds) {
  const size_t colon = peer.rfind(':');
  const bool has_port = colon != peer.npos && peer.find(':') == colon;
  const std::string host = has_port ? peer.substr(0, colon) : peer;
  const std::string why = why_not_reached(host, has_port ? peer.substr(colon + 1) : kSomePort, seconds);
  const std::string what = "peer " + printable(peer);
  return why.empty()
             ? well(what, "it is reached")
             : ill(what, why,
                   fmt::format(
                       "ping {}, and let the machines of the pool reach each other at all ports above 1023",
                       host));
}

}  // namespace

std::vector<Finding> examine(const DoctorOptions& options) {
  std::vector<Finding> findings{look_at_versions(), look_at_clock()};
  if (!options.work_dir.empty()) findings.push_back(look_at_disk(options.work_dir));
  findings.push_back(look_at_descriptors());
  findings.push_back(look_at_threads());
  findings.push_back(look_at_openat2());
  if (!options.scheduler.endpoint.empty()) {
    findings.push_back(look_at_scheduler(options));
    findings.push_back(look_at_ports(options));
  }
  for (const std::string& peer : options.peers) findings.push_back(look_at_peer(peer, options.seconds));
  return findings;
}

void report(const std::vector<Finding>& findings, bool as_json) {
  for (const Finding& finding : findings) {
    if (as_json)
      std::cout << nlohmann::json{{"what", finding.what},
                                  {"well", finding.is_well},
                                  {"found", finding.found},
                                  {"mend", finding.mend}}
                       .dump()
                << '\n';
    else
      std::cout << fmt::format("{:5} {}: {}\n", finding.is_well ? "ok" : "WRONG", finding.what, finding.found)
                << (finding.is_well ? "" : fmt::format("      mend it: {}\n", finding.mend));
  }
  std::cout << std::flush;
  const auto ills = std::ranges::count(findings, false, &Finding::is_well);
  if (ills > 0) throw Error(fmt::format("{} of {} findings must be mended", ills, findings.size()));
}

}  // namespace modelet::agent
