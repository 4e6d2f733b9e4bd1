#include "comm/messaging/early_messages.h"

namespace modelet::comm {
bool EarlyMessages::has_room_for(const Frame& frame) const {
  return messages_.size() < max_messages_ && bytes_ + frame.bytes() <= max_bytes_;
}

bool EarlyMessages::keep(Envelope& envelope, Frame frame) {
  const size_t bytes = frame.bytes();
  Map::node_type entry = unused_entry();
  entry.key() = {envelope.tag, frame.from};
  std::swap(entry.mapped().envelope, envelope);
  entry.mapped().frame = std::move(frame);
  Map::insert_return_type inserted = messages_.insert(std::move(entry));
  if (inserted.inserted)
    bytes_ += bytes;
  else
    keep_unused(std::move(inserted.node));
  return inserted.inserted;
}

const EarlyMessage* EarlyMessages::first(Tag tag) const {
  if (messages_.empty() || messages_.begin()->first.first != tag) return nullptr;
  return &messages_.begin()->second;
}

void EarlyMessages::pop() {
  bytes_ -= messages_.begin()->second.frame.bytes();
  keep_unused(messages_.extract(messages_.begin()));
}

size_t EarlyMessages::drop_before(Tag tag) {
  size_t dropped = 0;
  for (; !messages_.empty() && messages_.begin()->first.first < tag; ++dropped) pop();
  return dropped;
}

EarlyMessages::Map::node_type EarlyMessages::unused_entry() {
  if (unused_.empty()) {
    Map one;
    return one.extract(one.try_emplace({}).first);
  }
  Map::node_type entry = std::move(unused_.back());
  unused_.pop_back();
  return entry;
}

void EarlyMessages::keep_unused(Map::node_type entry) {
  entry.mapped().frame = {};
  unused_.push_back(std::move(entry));
}

}  // namespace modelet::comm
