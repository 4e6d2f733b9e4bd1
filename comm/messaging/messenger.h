// Messenger: sends and receives the messages of a group's operations. The collectives are built on it
// (comm/collectives/group.h, dissemination.h, reductions.h). It knows which operation is running, keeps the
// order of tags, drops messages of other groups, rejects damaged ones, and counts. Its errors name the
// peer, the step and the operation. Internal to comm/.
//
// A connection between two ranks may end and come back while the members of the group stay the same.
// Messages that were under way are then lost, and neither side knows which ones. Nothing is lost for the
// operation, because:
// - Each message says from which operation on its sender still needs messages (Envelope::needs_from).
// - Each rank keeps the messages that its peers may still need (Unconfirmed), and sends all of them again
//   when a connection is back.
// - A rank that gets a message twice drops the second one, by its tag.
// A rank that has left the group sends nothing again. So it stays until its peers need nothing more of it
// (await_farewells()).
//
// An operation begins with begin_send() or begin_collect(). If one rank sends several messages to another
// within an operation, go_on_at() numbers them. One thread uses a Messenger; any thread may call
// interrupt(). It allocates memory only when more messages are under way than ever before.
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
  // The other ranks, in the order in which this rank sends to them. Each rank begins with a different one,
  // so that not all ranks send to the same one first.
  std::span<const int> others() const { return others_; }
  std::string node_name(int rank) const;

  Transport& transport() { return *transport_; }
  const GroupOptions& options() const { return options_; }
  const std::shared_ptr<Interruption>& interruption() const { return interruption_; }
  const Meters& meters() const { return meters_; }
  // options().algorithm if it is set, else what choose() says.
  Algorithm algorithm(Operation operation, size_t bytes) const;
  void interrupt(const std::string& reason);

  // `operation` appears in error messages. It must be a string literal.
  void begin_send(Tag tag, const char* operation);
  void begin_collect(Tag tag, const char* operation);
  // Continues the operation at hop `hop`: messages packed from here on have this number, and so must the
  // messages that are collected after the next begin_collect().
  void go_on_at(size_t hop);
  void begin_collect() { begin_collect(tag_, operation_); }
  size_t hop() const { return tag_.hop; }

  // Makes the message that post() then sends. post() may be called several times.
  void pack(std::span<const OutBlock> blocks);
  // The same for blocks that are already encoded.
  void pack(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes);
  const Outgoing& packed() const { return outgoing_; }
  void post(std::span<const int> to);
  void send_to_all(std::span<const OutBlock> blocks) {
    pack(blocks);
    post(others_);
  }

  // Waits until a message from every peer has arrived. Decodes each one as it arrives, into from[rank].
  // `patience` is as in await().
  void collect(std::span<const std::vector<InBlock>> from, double patience = 1);

  // Waits for a message from each of the ranks `from`, and passes each to `receiver` as it arrives. The
  // times after which a rank counts as missing and the operation fails are `patience` times those of the
  // options. `passed_on` is the number of ranks whose contributions a message carries. The sender itself had to wait
  // for all of these but its own, and the text of a time-out mentions that.
  class Receiver {
   public:
    // `payload` is checked and decompressed. May throw FormatError; the peer's name is added to it.
    virtual void receive(size_t sender, const Envelope& envelope, std::span<const std::byte> payload) = 0;

   protected:
    ~Receiver() = default;
  };
  void await(std::span<const int> from, double patience, Receiver& receiver, int passed_on = 1);

  // Tells all peers that this rank needs nothing more. From then on no peer is reported as missing.
  void say_farewell(Tag tag);
  // After that, sends again what the peers miss, until all have said the same, but for at most `patience`
  // seconds.
  void await_farewells(double patience);

  // Decodes blocks that rank `from` encoded, whichever rank sent them here. Throws FormatError if they are
  // not the expected ones.
  void decode(int from, std::span<const BlockHeader> headers, std::span<const std::byte> payload,
              std::span<const InBlock> blocks);

 private:
  std::string peer_name(int peer) const;
  std::string place() const;
  FormatError malformed(int from, const FormatError& error) const;
  PeerError too_late(double seconds, int passed_on) const;
  void send(std::span<const int> to, const RecycledPtr<Message>& message);
  void connection_changed(int peer, Transport::Connection what);
  void miss(int peer, const char* reason);
  void miss_silent_peers();
  bool found(int peer, bool has_arrived);
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
  Meters meters_;

  // The current operation, or the last one.
  Tag tag_;
  const char* operation_ = "";
  std::optional<Tag> sent_, collected_;  // tags of the last operations begun
  Tag needs_from_;                       // this rank needs no message with an earlier tag
  std::vector<bool> arrived_;            // [size]; also true for ranks from which nothing is expected
  // [size] the reasons why a peer is missed that were reported and still hold.
  std::vector<std::vector<const char*>> missed_;
  bool is_leaving_ = false;

  Outgoing outgoing_;
  Unconfirmed unconfirmed_;

  // The last message received, and the early ones.
  Envelope incoming_;
  std::vector<uint64_t> envelope_scratch_;
  std::vector<std::byte> raw_incoming_;
  EarlyMessages early_;
};

}  // namespace modelet::comm
