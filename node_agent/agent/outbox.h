// Outbox: what an agent has told the scheduler and does not know to have arrived. The scheduler answers each
// heartbeat (Alive) when all that was sent before it over the same connection has arrived; over a new
// connection everything is sent again, in order. So nothing is lost while a scheduler is away, and what comes
// twice is no news there.
//
// The messages are few while somebody confirms them. While nobody does they have a limit, beyond which the
// oldest event of a run is left out.
//
// Plain state; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/control/control.h"

namespace modelet::agent {

class Outbox {
 public:
  explicit Outbox(size_t most_messages = 4096) : most_(most_messages) {}

  // `heartbeat`: number of the last one that was sent over the connection that the message takes now.
  void add(comm::control::ToSchedulerMessage message, uint64_t heartbeat);
  // All of them take a new connection now, on which no heartbeat after `heartbeat` has been sent yet.
  void sent_again(uint64_t heartbeat);
  // What was sent before this heartbeat has arrived.
  void confirm(uint64_t heartbeat);
  void clear() { entries_.clear(); }

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  uint64_t left_out() const { return left_out_; }
  // Calls `use(message)` for each, in order.
  template <class Use>
  void for_each(const Use& use) const {
    for (const Entry& entry : entries_) use(entry.message);
  }

 private:
  struct Entry {
    comm::control::ToSchedulerMessage message;
    uint64_t after = 0;  // the heartbeat after which it was sent
  };

  size_t most_;
  uint64_t left_out_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace modelet::agent
