// EarlyMessages: keeps messages of operations that this rank has not reached yet, in the order of their
// tags, up to a limit. Owns their frames, and reuses its memory. Used by one thread.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/envelope.h"
#include "comm/wire/tag.h"

namespace modelet::comm {

struct EarlyMessage {
  Envelope envelope;
  Frame frame;
};

class EarlyMessages {
 public:
  EarlyMessages(size_t max_messages, size_t max_bytes) : max_messages_(max_messages), max_bytes_(max_bytes) {}

  bool has_room_for(const Frame& frame) const;
  // Keeps a message. Its envelope's contents are taken: `envelope` gets those of an old message, whose
  // memory it may reuse. Returns false, and drops the message, if there is already one of this operation
  // and sender.
  bool keep(Envelope& envelope, Frame frame);

  // The first message of the operation `tag`, if this is the earliest operation with messages; else null.
  // The pointer is valid until pop(), which drops the message.
  const EarlyMessage* first(Tag tag) const;
  void pop();
  // Drops the messages of operations before `tag`; returns how many.
  size_t drop_before(Tag tag);

  size_t size() const { return messages_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  using Map = std::map<std::pair<Tag, int>, EarlyMessage>;  // by tag and sender

  Map::node_type unused_entry();
  void keep_unused(Map::node_type entry);

  const size_t max_messages_, max_bytes_;
  Map messages_;
  std::vector<Map::node_type> unused_;  // kept to reuse the memory of their envelopes
  size_t bytes_ = 0;
};

}  // namespace modelet::comm
