// In-process transport: queues between the threads of one process. It takes the place of ZmqTransport in
// tests, benchmarks and groups of one.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport/transport.h"

namespace modelet::comm {

// Makes `size` connected transports; the index is the rank. Each may be used by another thread and outlive
// the others. A message to a transport that is gone stays unread. A queue holds at most `max_waiting`
// messages; beyond that send() throws PeerError.
std::vector<std::unique_ptr<Transport>> make_inproc_transports(int size, size_t max_waiting = 4096);

}  // namespace modelet::comm
