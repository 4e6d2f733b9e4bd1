// Links with latency, for kernels without `netem`:
//
//   cluster-relay MICROSECONDS NAMESPACE:DEVICE:PORT ...
//
// Each DEVICE, in a network namespace that is named by its file, is connected to a PORT of this process' own
// namespace: what is sent through one arrives at the other at least MICROSECONDS later, in order. Both are
// TAP devices that exist and that nobody uses. When all are connected, the program goes on in the background
// until it gets a signal. An error before that is printed, and the exit code is 1.
//
// Packets are relayed as the sender's TCP hands them over, before they are divided into segments
// (IFF_VNET_HDR), as a veth pair does, so a packet of many segments costs one read and one write.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Packet {
  Clock::time_point due;
  int to;  // device
  std::vector<char> bytes;
};

template <class Result>
Result require(Result result, const std::string& what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

int open_tap(const std::string& name) {
  const int device = require(open("/dev/net/tun", O_RDWR | O_NONBLOCK), "/dev/net/tun");
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  require(ioctl(device, TUNSETIFF, &request), name);
  require(ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4), name);
  return device;
}

void enter(int name_space) { require(setns(name_space, CLONE_NEWNET), "setns"); }

// Returns the devices of both ends of all links: device i is connected to device i ^ 1.
std::vector<pollfd> connect(const std::vector<std::string>& links) {
  std::vector<pollfd> devices;
  const int home = require(open("/proc/self/ns/net", O_RDONLY), "/proc/self/ns/net");
  for (const std::string& link : links) {
    const size_t port = link.rfind(':'), device = link.rfind(':', port - 1);
    if (port == std::string::npos || device == std::string::npos)
      throw std::invalid_argument(link + " is not NAMESPACE:DEVICE:PORT");
    const std::string name_space = link.substr(0, device);
    const int there = require(open(name_space.c_str(), O_RDONLY), name_space);
    enter(there);
    devices.push_back({open_tap(link.substr(device + 1, port - device - 1)), POLLIN, 0});
    enter(home);
    devices.push_back({open_tap(link.substr(port + 1)), POLLIN, 0});
    close(there);
  }
  close(home);
  return devices;
}

// All links delay equally, so packets leave in the order in which they came: one queue serves all.
[[noreturn]] void relay(std::vector<pollfd> devices, Clock::duration delay) {
  static std::array<char, 1 << 17> packet;  // the largest has 64 KiB and headers
  std::deque<Packet> queue;
  while (true) {
    timespec left{};
    if (!queue.empty()) {
      const auto wait = std::max(queue.front().due - Clock::now(), Clock::duration::zero());
      left = {wait / std::chrono::seconds(1), (wait % std::chrono::seconds(1)).count()};
    }
    require(ppoll(devices.data(), devices.size(), queue.empty() ? nullptr : &left, nullptr), "ppoll");
    for (size_t i = 0; i < devices.size(); ++i) {
      if (devices[i].revents == 0) continue;
      const ssize_t size = read(devices[i].fd, packet.data(), packet.size());
      if (size < 0 && errno == EAGAIN) continue;  // its cable was pulled
      require(size, "a device");
      queue.push_back({Clock::now() + delay, devices[i ^ 1].fd, {packet.data(), packet.data() + size}});
    }
    // A packet that a device does not take, because it is down, is lost as in a cable that was pulled.
    for (; !queue.empty() && queue.front().due <= Clock::now(); queue.pop_front())
      static_cast<void>(!write(queue.front().to, queue.front().bytes.data(), queue.front().bytes.size()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw std::invalid_argument("cluster-relay MICROSECONDS NAMESPACE:DEVICE:PORT ...");
    const std::chrono::microseconds delay(std::stoul(argv[1]));
    const std::vector<pollfd> devices = connect({argv + 2, argv + argc});
    // The nodes' work shares the cores; a wire would not wait for it.
    require(setpriority(PRIO_PROCESS, 0, -20), "priority");
    require(prctl(PR_SET_TIMERSLACK, 1), "timers");
    require(daemon(0, 0), "daemon");
    relay(devices, delay);
  } catch (const std::exception& error) {
    std::cerr << "cluster-relay: " << error.what() << '\n';
    return 1;
  }
}
