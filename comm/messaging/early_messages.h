// EarlyMessages: messages of operations that this rank has not reached yet, in the order of their tags, up to
// a limit. Owns the frames and keeps its memory. Used by one thread.
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
  // Takes the contents of the envelope and gives back those of an old one. False: there is already a message
  // of this operation and sender, and this one is dropped.
  bool keep(Envelope& envelope, Frame frame);

  // The first message of an operation, or nullptr. It stays valid until pop(), which drops it.
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
  std::vector<Map::node_type> unused_;  // kept for the memory of their envelopes
  size_t bytes_ = 0;
};

}  // namespace modelet::comm
