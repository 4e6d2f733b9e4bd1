// Messenger: sends and receives the messages of a group's operations, for the collectives that are built from
// it (comm/group.h, dissemination.h, reductions.h; internal to comm/). It knows which operation runs, keeps
// the order of tags, refuses what is not of this group or not well-formed, counts, and says in errors who,
// when and in what.
//
// An operation begins with begin_send() or begin_collect(). It may consist of several messages from a rank to
// another: then go_on_at() numbers them. One thread; interrupt() from any. It takes memory only
// when more messages are under way than ever before.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/algorithm.h"
#include "comm/block.h"
#include "comm/early_messages.h"
#include "comm/envelope.h"
#include "comm/group_options.h"
#include "comm/interruption.h"
#include "comm/meters.h"
#include "comm/outgoing.h"
#include "comm/tag.h"
#include "comm/transport.h"

namespace modelet::comm {

class Messenger {
 public:
  Messenger(std::unique_ptr<Transport> transport, GroupOptions options,
            std::shared_ptr<Interruption> interruption);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  size_t own() const { return static_cast<size_t>(rank()); }
  size_t count() const { return static_cast<size_t>(size()); }
  // The rank that is `distance` after this one, going round.
  int rank_at(int distance) const { return (rank() + distance + size()) % size(); }
  // In the order in which they are sent to. Each rank begins with another one, so that not everybody sends to
  // the same one first.
  std::span<const int> others() const { return others_; }
  std::string node_name(int rank) const;

  Transport& transport() { return *transport_; }
  const GroupOptions& options() const { return options_; }
  const std::shared_ptr<Interruption>& interruption() const { return interruption_; }
  const Meters& meters() const { return meters_; }
  // Of options().algorithm, else choose().
  Algorithm algorithm(Operation operation, size_t bytes) const;
  void interrupt(const std::string& reason);

  // ---- operations
  // `operation`: for error messages, a literal.
  void begin_send(Tag tag, const char* operation);
  void begin_collect(Tag tag, const char* operation);
  // The operation goes on: what is packed from here on are its messages of number `hop`, and what is
  // collected after begin_collect().
  void go_on_at(size_t hop);
  void begin_collect() { begin_collect(tag_, operation_); }
  size_t hop() const { return tag_.hop; }

  // ---- sending
  // Makes the message that post() sends, once or more.
  void pack(std::span<const OutBlock> blocks);
  void pack(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes);  // encoded already
  const Outgoing& packed() const { return outgoing_; }
  void post(std::span<const int> to);
  void send_to_all(std::span<const OutBlock> blocks) {
    pack(blocks);
    post(others_);
  }

  // ---- receiving
  // Waits until every peer's message has come; decodes each at once, into from[rank].
  void collect(std::span<const std::vector<InBlock>> from);

  // Waits for a message of each of the ranks `from`, gives each to `receiver` at once. `passed_on`: of how
  // many ranks a message tells; the sender waited for all but itself, as a time-out says.
  class Receiver {
   public:
    // `payload`: before LZ4, checked. May throw FormatError: the peer is named then.
    virtual void receive(size_t sender, const Envelope& envelope, std::span<const std::byte> payload) = 0;

   protected:
    ~Receiver() = default;
  };
  void await(std::span<const int> from, double timeout_seconds, Receiver& receiver, int passed_on = 1);

  // Blocks that rank `from` encoded, however they came. FormatError: they are others than expected.
  void decode(int from, std::span<const BlockHeader> headers, std::span<const std::byte> payload,
              std::span<const InBlock> blocks);

 private:
  std::string peer_name(int peer) const;
  std::string place() const;
  FormatError malformed(int from, const FormatError& error) const;
  PeerError too_late(double seconds, int passed_on) const;
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

  // The operation that runs, or ran last.
  Tag tag_;
  const char* operation_ = "";
  std::optional<Tag> sent_, collected_;  // of the last ones
  std::vector<bool> arrived_;            // [size]; also those from which nothing is expected

  Outgoing outgoing_;

  // The message received last, and early ones.
  Envelope incoming_;
  std::vector<uint64_t> envelope_scratch_;
  std::vector<std::byte> raw_incoming_;
  EarlyMessages early_;
};

}  // namespace modelet::comm
