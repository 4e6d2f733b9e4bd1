// Messenger: sends and receives the messages of a group's operations, for the collectives that are built on
// it (comm/collectives/group.h, dissemination.h, reductions.h; internal to comm/). It knows which operation
// runs, keeps the order of tags, refuses messages that are not of this group or not well-formed, and counts.
// Its errors name the peer, the step and the operation.
//
// A connection between two ranks may end and come back while the members stay the same. What was under way is
// lost then, and neither side knows which messages these were. So each message says from which operation on its
// sender needs those that were sent to it, each rank keeps what its peers may still need (Unconfirmed), and sends all
// of that again when a connection is back. What has arrived already is dropped there as a duplicate, by its tag. That
// goes unnoticed, but for the last message before a rank leaves the group: who has left sends nothing again.
//
// An operation begins with begin_send() or begin_collect(). It may consist of several messages from one rank
// to another: then go_on_at() numbers them. Used by one thread, except interrupt(). It takes memory only when
// more messages are under way than ever before.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "comm/messaging/algorithm.h"
#include "comm/messaging/block.h"
#include "comm/messaging/early_messages.h"
#include "comm/messaging/group_options.h"
#include "comm/messaging/interruption.h"
#include "comm/messaging/meters.h"
#include "comm/messaging/outgoing.h"
#include "comm/transport/transport.h"
#include "comm/wire/envelope.h"
#include "comm/wire/tag.h"

namespace modelet::comm {

class Messenger {
 public:
  Messenger(std::unique_ptr<Transport> transport, GroupOptions options,
            std::shared_ptr<Interruption> interruption);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  size_t own() const { return static_cast<size_t>(rank()); }
  size_t count() const { return static_cast<size_t>(size()); }
  // The rank that is `distance` after this one, counting around the ring.
  int rank_at(int distance) const { return (rank() + distance + size()) % size(); }
  // The other ranks in the order in which this one sends to them. Each rank begins with another one, so that
  // not all send to the same one first.
  std::span<const int> others() const { return others_; }
  std::string node_name(int rank) const;

  Transport& transport() { return *transport_; }
  const GroupOptions& options() const { return options_; }
  const std::shared_ptr<Interruption>& interruption() const { return interruption_; }
  const Meters& meters() const { return meters_; }
  // options().algorithm, else choose().
  Algorithm algorithm(Operation operation, size_t bytes) const;
  void interrupt(const std::string& reason);

  // ---- operations
  // `operation`: for error messages, a literal.
  void begin_send(Tag tag, const char* operation);
  void begin_collect(Tag tag, const char* operation);
  // The operation goes on: messages that are packed from here on, and those collected after begin_collect(),
  // have the number `hop`.
  void go_on_at(size_t hop);
  void begin_collect() { begin_collect(tag_, operation_); }
  size_t hop() const { return tag_.hop; }

  // ---- sending
  // Makes the message that post() then sends, once or more often.
  void pack(std::span<const OutBlock> blocks);
  void pack(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes);  // encoded already
  const Outgoing& packed() const { return outgoing_; }
  void post(std::span<const int> to);
  void send_to_all(std::span<const OutBlock> blocks) {
    pack(blocks);
    post(others_);
  }

  // ---- receiving
  // Waits until a message of every peer has come; decodes each at once, into from[rank].
  void collect(std::span<const std::vector<InBlock>> from);

  // Waits for a message of each of the ranks `from`, and gives each to `receiver` at once. `passed_on`: how
  // many ranks' contributions a message carries. Its sender waited for all of them but its own, which a
  // time-out mentions.
  class Receiver {
   public:
    // `payload`: without LZ4, checked. May throw FormatError, to which the peer's name is added.
    virtual void receive(size_t sender, const Envelope& envelope, std::span<const std::byte> payload) = 0;

   protected:
    ~Receiver() = default;
  };
  void await(std::span<const int> from, double timeout_seconds, Receiver& receiver, int passed_on = 1);

  // Decodes blocks that rank `from` encoded, however they came. FormatError if they are not the expected
  // ones.
  void decode(int from, std::span<const BlockHeader> headers, std::span<const std::byte> payload,
              std::span<const InBlock> blocks);

 private:
  std::string peer_name(int peer) const;
  std::string place() const;
  FormatError malformed(int from, const FormatError& error) const;
  PeerError too_late(double seconds, int passed_on) const;
  void send(std::span<const int> to, const PoolPtr<Message>& message);
  void connection_changed(int peer, Transport::Connection what);
  void miss(int peer, const char* reason);
  void miss_silent_peers();
  void begin(Tag tag, const char* operation);
  void check_size() const;
  bool receive(double seconds, Frame& frame);
  bool admit(const Frame& frame);
  void keep(Frame frame);
  size_t take_early(Receiver& receiver);
  void open(const Envelope& envelope, const Frame& frame, Receiver& receiver);

  std::unique_ptr<Transport> transport_;
  const GroupOptions options_;
  const std::shared_ptr<Interruption> interruption_;
  std::vector<int> others_;
  SteadyClock clock_;
  Meters meters_;

  // The operation that is running, or ran last.
  Tag tag_;
  const char* operation_ = "";
  std::optional<Tag> sent_, collected_;  // of the last ones
  Tag needs_from_;             // this rank has what was sent to it with earlier tags, or needs it no more
  std::vector<bool> arrived_;  // [size]; also those from which nothing is expected
  // [size] reasons why a peer is missed that were reported since it was heard of.
  std::vector<std::vector<const char*>> missed_;

  Outgoing outgoing_;
  Unconfirmed unconfirmed_;

  // The message received last, and early messages.
  Envelope incoming_;
  std::vector<uint64_t> envelope_scratch_;
  std::vector<std::byte> raw_incoming_;
  EarlyMessages early_;
};

}  // namespace modelet::comm
