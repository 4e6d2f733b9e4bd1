// Groups of ranks in one process, over either transport, each rank on its own thread.
#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/collectives/group.h"
#include "comm/transport/inproc.h"
#include "comm/transport/zmq.h"

namespace modelet::comm::testing {

enum class TransportKind { kInproc, kZmq, kCurve };

inline std::string name_of(TransportKind kind) {
  return kind == TransportKind::kInproc ? "Inproc" : kind == TransportKind::kZmq ? "Zmq" : "Curve";
}

inline std::vector<std::unique_ptr<Transport>> make_transports(TransportKind kind, int size,
                                                               const GroupOptions& options) {
  if (kind == TransportKind::kInproc) return make_inproc_transports(size);
  std::vector<std::unique_ptr<ZmqTransport>> bound;
  std::vector<Peer> peers;
  for (int rank = 0; rank < size; ++rank) {
    bound.push_back(std::make_unique<ZmqTransport>(ZmqOptions{.curve = kind == TransportKind::kCurve}));
    peers.push_back(bound.back()->self());
  }
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    bound[static_cast<size_t>(rank)]->connect(rank, peers, options.run, options.epoch);
    transports.push_back(std::move(bound[static_cast<size_t>(rank)]));
  }
  return transports;
}

inline std::vector<std::unique_ptr<Group>> make_groups(TransportKind kind, int size,
                                                       const GroupOptions& options) {
  std::vector<std::unique_ptr<Group>> groups;
  for (auto& transport : make_transports(kind, size, options))
    groups.push_back(std::make_unique<Group>(std::move(transport), options));
  return groups;
}

// Sends bytes that no Group would write.
inline void send_bytes(Transport& transport, int to, std::span<const std::byte> envelope,
                       std::span<const std::byte> payload) {
  const RecycledPtr<Message> message(std::make_unique<Message>());
  const auto copied = [](std::span<const std::byte> part, Scratch<std::byte>& memory) {
    const std::span<std::byte> copy = memory.reserve(part.size());
    std::ranges::copy(part, copy.begin());
    return copy;
  };
  message->envelope = copied(envelope, message->envelope_memory);
  message->payload = copied(payload, message->payload_memory);
  transport.send(std::span(&to, 1), message);
}

// Runs `rank_main(group)` for every rank at once; rethrows the first failure in rank order.
inline void run_ranks(std::vector<std::unique_ptr<Group>>& groups,
                      const std::function<void(Group&)>& rank_main) {
  std::vector<std::exception_ptr> failures(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        rank_main(*groups[rank]);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace modelet::comm::testing
