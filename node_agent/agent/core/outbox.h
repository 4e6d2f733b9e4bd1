// Outbox: keeps the messages from an agent to the scheduler that may not have arrived. The scheduler
// answers each heartbeat (Alive) when everything that was sent before it over the same connection has
// arrived. Over a new connection all messages are sent again, in order. So nothing is lost while a
// scheduler is away, and the scheduler ignores what comes twice.
//
// While a scheduler confirms messages, there are few of them. While none does, their number has a limit,
// beyond which the oldest event of a run is dropped.
//
// Plain state, without locks: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "comm/control/control.h"

namespace modelet::agent {

class Outbox {
 public:
  explicit Outbox(size_t most_messages = 4096) : most_(most_messages) {}

  // Adds a message that is being sent now. `heartbeat` is the number of the last heartbeat that was sent
  // before it.
  void add(comm::control::ToSchedulerMessage message, uint64_t heartbeat);
  // All messages have just been sent again over a new connection. `heartbeat` is the number of the last
  // heartbeat sent before that.
  void sent_again(uint64_t heartbeat);
  // Everything that was sent before this heartbeat has arrived.
  void confirm(uint64_t heartbeat);
  void clear() { entries_.clear(); }

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  uint64_t left_out() const { return left_out_; }
  // Calls `use(message)` for each message, in order.
  template <class Use>
  void for_each(const Use& use) const {
    for (const Entry& entry : entries_) use(entry.message);
  }

 private:
  struct Entry {
    comm::control::ToSchedulerMessage message;
    uint64_t after = 0;  // the last heartbeat before it was sent
  };

  size_t most_;
  uint64_t left_out_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace modelet::agent
