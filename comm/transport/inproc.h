// In-process transport: queues between the threads of one process. The twin of ZmqTransport for tests,
// benchmarks and groups of one.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport/transport.h"

namespace modelet::comm {

// Makes `size` connected transports, index = rank. Each may live in another thread and outlive the others; a
// message to a transport that is gone waits unread. A queue holds at most `max_waiting` messages; beyond that
// send() throws PeerError.
std::vector<std::unique_ptr<Transport>> make_inproc_transports(int size, size_t max_waiting = 4096);

}  // namespace modelet::comm
