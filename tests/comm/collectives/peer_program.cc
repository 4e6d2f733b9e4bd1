// Rank 1 of a group of two, in a process of its own that a test kills. It prints its endpoint, reads the
// endpoint of rank 0, and then does one barrier after the other, in steps 1, 2, ...
#include <iostream>
#include <string>

#include "base/error.h"
#include "comm/collectives/group.h"
#include "comm/transport/zmq.h"

int main() {
  using modelet::comm::Group, modelet::comm::ZmqTransport;
  auto transport = std::make_unique<ZmqTransport>();
  modelet::comm::Peer ranks[2];
  ranks[1] = transport->self();
  std::cout << ranks[1].endpoint << std::endl;
  std::cin >> ranks[0].endpoint;
  transport->connect(1, ranks, 5, 1);
  Group group(std::move(transport), {.run = 5});
  try {
    for (uint64_t step = 1;; ++step) group.barrier({step});
  } catch (const modelet::Error& error) {
    std::cerr << error.what() << "\n";  // the test went away without killing it
    return 1;
  }
}
