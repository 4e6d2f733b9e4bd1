#include "comm/group.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/error.h"
#include "comm/envelope.h"
#include "comm/inproc_transport.h"
#include "comm/lz4.h"

namespace modelet::comm {
namespace {

// Memory for `count` elements; grows, never shrinks, keeps nothing.
template <class T>
std::span<T> reserve(AlignedVector<T>& buffer, size_t count) {
  if (buffer.size() < count) buffer.resize(count);
  return std::span(buffer).first(count);
}

void copy(ConstMatrix from, Matrix to) {
  for (size_t r = 0; r < to.rows; ++r) std::copy_n(from.row(r), to.cols, to.row(r));
}

void add(ConstMatrix from, Matrix to) {
  for (size_t r = 0; r < to.rows; ++r)
    for (size_t c = 0; c < to.cols; ++c) to.row(r)[c] += from.row(r)[c];
}

}  // namespace

class Group::Impl {
 public:
  Impl(std::unique_ptr<Transport> transport, GroupOptions options)
      : transport_(std::move(transport)), options_(std::move(options)) {
    MODELET_CHECK(rank() >= 0 && rank() < size(), "the transport is not connected");
    MODELET_CHECK(options_.node_names.empty() || options_.node_names.size() == count());
    meters_.peers.resize(count());
    arrived_.resize(count());
    inbox_.resize(count());
    nothing_.resize(count());
    outgoing_.run = options_.run;
    outgoing_.epoch = options_.epoch;
    outgoing_.sender = static_cast<uint32_t>(rank());
  }

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  const Meters& meters() const { return meters_; }

  std::string node_name(int rank) const {
    return options_.node_names.empty() ? fmt::format("rank {}", rank)
                                       : options_.node_names[static_cast<size_t>(rank)];
  }

  void interrupt(const std::string& reason) {
    {
      const std::lock_guard lock(interrupt_mutex_);
      if (!interrupted_) interrupted_ = reason;
    }
    transport_->interrupt(reason);
  }

  void barrier(Tag tag) {
    begin_send(tag, "barrier");
    send_to_all({});
    collect(tag, "barrier", nothing_);
  }

  void send_all(Tag tag, std::span<const OutBlock> mine) {
    begin_send(tag, "all-gather");
    send_to_all(mine);
  }

  void send_each(Tag tag, std::span<const std::vector<OutBlock>> to) {
    MODELET_CHECK(to.size() == count());
    begin_send(tag, "all-to-all");
    for (int i = 1; i < size(); ++i) {
      pack(to[static_cast<size_t>(neighbour(i))]);
      post(neighbour(i));
    }
  }

  void collect(Tag tag, const char* operation, std::span<const std::vector<InBlock>> from) {
    MODELET_CHECK(from.size() == count());
    begin_collect(tag, operation);
    collect(from);
  }

  void all_reduce_sum(Tag tag, Matrix values, const Codec& codec, Rounding rounding) {
    begin_send(tag, "all-reduce");
    if (size() == 1) return;
    receive_into_scratch(values);
    const OutBlock mine{&codec, values, rounding};
    send_to_all(std::span(&mine, 1));
    codec.decode(std::span(raw_payload_).first(outgoing_.raw_bytes), inbox_[own()][0]);
    collect(tag, "all-reduce", inbox_);
    add_up(values);
  }

  void reduce_scatter_sum(Tag tag, std::span<const OutBlock> parts, Matrix mine) {
    MODELET_CHECK(parts.size() == count());
    const ConstMatrix own_part = parts[own()].values;
    MODELET_CHECK(own_part.rows == mine.rows && own_part.cols == mine.cols);
    begin_send(tag, "reduce-scatter");
    receive_into_scratch(mine);
    for (int i = 1; i < size(); ++i) {
      const int to = neighbour(i);
      pack(parts.subspan(static_cast<size_t>(to), 1));
      post(to);
    }
    copy(own_part, inbox_[own()][0]);
    collect(tag, "reduce-scatter", inbox_);
    add_up(mine);
  }

 private:
  // A message that came before this rank reached its operation.
  struct Waiting {
    Envelope envelope;
    Frame frame;
  };

  size_t count() const { return static_cast<size_t>(size()); }
  size_t own() const { return static_cast<size_t>(rank()); }
  // Each rank starts with another peer, so that not everybody sends to the same one first.
  int neighbour(int distance) const { return (rank() + distance) % size(); }

  // ---- what errors say
  std::string peer_name(int peer) const {
    if (options_.node_names.empty()) return fmt::format("rank {}", peer);
    return fmt::format("rank {} (node {})", peer, options_.node_names[static_cast<size_t>(peer)]);
  }
  std::string place() const {
    const std::string attempt = tag_.attempt > 0 ? fmt::format(", attempt {}", tag_.attempt) : "";
    return fmt::format("at step {}, round {}{} ({})", tag_.step, tag_.round, attempt, operation_);
  }
  FormatError malformed(int from, const FormatError& error) const {
    return FormatError(fmt::format("message from {}, {}: {}", peer_name(from), place(), error.what()));
  }
  PeerError too_late() const {
    std::string missing;
    int first = -1;
    for (int peer = 0; peer < size(); ++peer) {
      if (arrived_[static_cast<size_t>(peer)]) continue;
      if (first < 0) first = peer;
      missing += (missing.empty() ? "" : " and ") + peer_name(peer);
    }
    return PeerError(first,
                     fmt::format("no message from {} within {} s, {}: the node is dead, cut off or too slow",
                                 missing, options_.timeout_seconds, place()));
  }

  void begin_send(Tag tag, const char* operation) {
    begin(tag, operation);
    MODELET_CHECK(!sent_ || tag > *sent_, "tags of what a group sends must grow");
    sent_ = tag;
  }

  void begin_collect(Tag tag, const char* operation) {
    begin(tag, operation);
    MODELET_CHECK(!collected_ || tag > *collected_, "tags of what a group collects must grow");
    collected_ = tag;
    while (!waiting_.empty() && waiting_.begin()->first.first < tag) {
      ++meters_.dropped_messages;
      forget(waiting_.begin());
    }
  }

  void begin(Tag tag, const char* operation) {
    throw_if_interrupted();
    tag_ = tag;
    operation_ = operation;
  }

  // A rank that has nothing to receive, as in a group of one, would not notice otherwise.
  void throw_if_interrupted() {
    const std::lock_guard lock(interrupt_mutex_);
    if (interrupted_) throw Interrupted(*interrupted_);
  }

  // ---- sending
  void send_to_all(std::span<const OutBlock> blocks) {
    pack(blocks);
    for (int i = 1; i < size(); ++i) post(neighbour(i));
  }

  // Encodes blocks into a message ready to post, any number of times.
  void pack(std::span<const OutBlock> blocks) {
    Stopwatch watch;
    size_t most = 0;
    for (const OutBlock& block : blocks) most += block.codec->max_bytes(block.values.rows, block.values.cols);
    const std::span<std::byte> raw = reserve(raw_payload_, most);
    outgoing_.tag = tag_;
    outgoing_.blocks.clear();
    outgoing_.raw_bytes = 0;
    outgoing_values_ = 0;
    for (const OutBlock& block : blocks) {
      const auto [rows, cols] = std::pair(block.values.rows, block.values.cols);
      MODELET_CHECK(rows <= std::numeric_limits<uint32_t>::max() &&
                    cols <= std::numeric_limits<uint32_t>::max());
      const size_t used = block.codec->encode(block.values, block.rounding, raw.subspan(outgoing_.raw_bytes));
      outgoing_.blocks.push_back(
          {static_cast<uint32_t>(rows), static_cast<uint32_t>(cols), block.codec->id(), used});
      outgoing_.raw_bytes += used;
      outgoing_values_ += rows * cols;
    }
    if (std::max<size_t>(outgoing_.raw_bytes, outgoing_values_ * sizeof(float)) > options_.max_message_bytes)
      throw Error(fmt::format(
          "message of {} values in {} bytes, {}: over the limit of {} bytes: use a smaller train.batch",
          outgoing_values_, outgoing_.raw_bytes, place(), options_.max_message_bytes));
    payload_ = compressed(raw.first(outgoing_.raw_bytes));
    outgoing_.payload_hash = payload_hash(payload_);
    envelope_ = writer_.write(outgoing_);
    meters_.encode_seconds += watch.seconds();
  }

  // What to send for `raw`: its LZ4 block if that is wanted and smaller.
  std::span<const std::byte> compressed(std::span<const std::byte> raw) {
    const size_t used =
        options_.lz4 && !raw.empty() ? lz4_compress(raw, reserve(lz4_payload_, raw.size() - 1)) : 0;
    outgoing_.lz4 = used > 0;
    return outgoing_.lz4 ? std::span<const std::byte>(lz4_payload_).first(used) : raw;
  }

  void post(int to) {
    try {
      transport_->send(to, envelope_, payload_);
    } catch (const PeerError& error) {
      throw PeerError(to, fmt::format("cannot send to {}, {}: {}", peer_name(to), place(), error.what()));
    }
    PeerMeter& meter = meters_.peers[static_cast<size_t>(to)];
    meter.bytes_sent += envelope_.size() + payload_.size();
    ++meter.messages_sent;
    meters_.raw_bytes += outgoing_values_ * sizeof(float);
  }

  // ---- receiving
  // Waits until every peer's message of this operation has come; decodes each at once.
  void collect(std::span<const std::vector<InBlock>> from) {
    const double start = clock_.now(), deadline = start + options_.timeout_seconds;
    arrived_.assign(count(), false);
    arrived_[own()] = true;
    size_t missing = count() - 1;
    missing -= take_waiting(from);
    Frame frame;
    while (missing > 0) {
      const double before = clock_.now();
      const bool got = receive(deadline - before, frame);
      const double now = clock_.now();
      meters_.wait_seconds += now - before;
      if (!got) throw too_late();
      if (!admit(frame)) continue;
      const auto sender = static_cast<size_t>(frame.from);
      if (incoming_.tag != tag_) {
        keep(std::move(frame));
      } else if (arrived_[sender]) {
        ++meters_.dropped_messages;
      } else {
        arrived_[sender] = true;
        meters_.peers[sender].wait_seconds += now - start;
        deliver(incoming_, frame, from[sender]);
        --missing;
      }
    }
  }

  bool receive(double seconds, Frame& frame) {
    const uint64_t dropped = transport_->dropped_messages();
    const bool got = transport_->receive(seconds, frame);
    meters_.dropped_messages += transport_->dropped_messages() - dropped;
    return got;
  }

  // Counts and parses a message; false if it is none of this epoch or too late.
  bool admit(const Frame& frame) {
    PeerMeter& meter = meters_.peers[static_cast<size_t>(frame.from)];
    meter.bytes_received += frame.envelope.size() + frame.payload.size();
    ++meter.messages_received;
    try {
      parse_envelope(frame.envelope, options_.max_message_bytes, incoming_);
    } catch (const FormatError& error) {
      throw malformed(frame.from, error);
    }
    const bool ours = incoming_.run == options_.run && incoming_.epoch == options_.epoch &&
                      incoming_.sender == static_cast<uint32_t>(frame.from) && incoming_.tag >= tag_;
    if (!ours) ++meters_.dropped_messages;
    return ours;
  }

  void keep(Frame frame) {
    const size_t bytes = frame.envelope.size() + frame.payload.size();
    if (waiting_.size() >= options_.max_waiting_messages ||
        waiting_bytes_ + bytes > options_.max_waiting_bytes)
      throw PeerError(frame.from,
                      fmt::format("{} is too far ahead, {}: {} early messages ({} bytes) wait already",
                                  peer_name(frame.from), place(), waiting_.size(), waiting_bytes_));
    const std::pair key(incoming_.tag, frame.from);
    if (!waiting_.try_emplace(key, Waiting{incoming_, std::move(frame)}).second)
      ++meters_.dropped_messages;
    else
      waiting_bytes_ += bytes;
  }

  // Delivers the messages of this operation that came early; returns their number.
  size_t take_waiting(std::span<const std::vector<InBlock>> from) {
    size_t taken = 0;
    while (!waiting_.empty() && waiting_.begin()->first.first == tag_) {
      const auto first = waiting_.begin();
      const auto sender = static_cast<size_t>(first->first.second);
      arrived_[sender] = true;
      deliver(first->second.envelope, first->second.frame, from[sender]);
      forget(first);
      ++taken;
    }
    return taken;
  }

  using WaitingMap = std::map<std::pair<Tag, int>, Waiting>;
  void forget(WaitingMap::iterator entry) {
    const Frame& frame = entry->second.frame;
    waiting_bytes_ -= frame.envelope.size() + frame.payload.size();
    waiting_.erase(entry);
  }

  void deliver(const Envelope& envelope, const Frame& frame, std::span<const InBlock> blocks) {
    Stopwatch watch;
    try {
      decode(envelope, open_payload(envelope, frame.payload, options_.max_message_bytes, raw_incoming_),
             blocks);
    } catch (const FormatError& error) {
      throw malformed(frame.from, error);
    }
    meters_.decode_seconds += watch.seconds();
  }

  static void decode(const Envelope& envelope, std::span<const std::byte> payload,
                     std::span<const InBlock> blocks) {
    if (envelope.blocks.size() != blocks.size())
      throw FormatError(fmt::format("{} matrices, expected {}", envelope.blocks.size(), blocks.size()));
    for (size_t i = 0; i < blocks.size(); ++i) {
      const BlockHeader& header = envelope.blocks[i];
      if (header.rows != blocks[i].rows || header.cols != blocks[i].cols)
        throw FormatError(fmt::format("matrix {} is {} x {}, expected {} x {}", i, header.rows, header.cols,
                                      blocks[i].rows, blocks[i].cols));
      const Codec* codec = find_codec(header.codec);
      if (codec == nullptr)
        throw FormatError(fmt::format("matrix {} has the unknown codec {}", i, header.codec));
      codec->decode(payload.first(header.bytes),
                    blocks[i]);  // block bytes add up to the payload: parse_envelope
      payload = payload.subspan(header.bytes);
    }
  }

  // ---- sums
  // Points inbox_ at one scratch matrix of the shape of `like` per rank.
  void receive_into_scratch(ConstMatrix like) {
    const size_t values = like.rows * like.cols;
    const std::span<float> scratch = reserve(scratch_, count() * values);
    for (size_t r = 0; r < count(); ++r)
      inbox_[r].assign(1, Matrix{scratch.data() + r * values, like.rows, like.cols, like.cols});
  }
  void add_up(Matrix sum) {
    copy(inbox_[0][0], sum);
    for (size_t r = 1; r < count(); ++r) add(inbox_[r][0], sum);
  }

  std::unique_ptr<Transport> transport_;
  GroupOptions options_;
  SteadyClock clock_;
  Meters meters_;
  std::mutex interrupt_mutex_;
  std::optional<std::string> interrupted_;  // the reason

  // The operation that runs, or ran last.
  Tag tag_;
  const char* operation_ = "";
  std::optional<Tag> sent_, collected_;  // of the last ones
  std::vector<bool> arrived_;            // [size]

  // The message to send: packed once, posted once or more.
  EnvelopeWriter writer_;
  Envelope outgoing_;
  uint64_t outgoing_values_ = 0;
  AlignedVector<std::byte> raw_payload_, lz4_payload_;
  std::span<const std::byte> envelope_, payload_;

  // The message received last, and early ones.
  Envelope incoming_;
  std::vector<std::byte> raw_incoming_;
  WaitingMap waiting_;
  size_t waiting_bytes_ = 0;

  AlignedVector<float> scratch_;               // of the sums
  std::vector<std::vector<InBlock>> nothing_;  // [size] of a barrier: all empty
  std::vector<std::vector<InBlock>> inbox_;    // [size] views of scratch_
};

Group::Group(std::unique_ptr<Transport> transport, GroupOptions options)
    : impl_(std::make_unique<Impl>(std::move(transport), std::move(options))) {}
Group::~Group() = default;

int Group::rank() const { return impl_->rank(); }
int Group::size() const { return impl_->size(); }
std::string Group::node_name(int rank) const { return impl_->node_name(rank); }
void Group::send_all(Tag tag, std::span<const OutBlock> mine) { impl_->send_all(tag, mine); }
void Group::send_each(Tag tag, std::span<const std::vector<OutBlock>> to) { impl_->send_each(tag, to); }
void Group::collect(Tag tag, std::span<const std::vector<InBlock>> from) {
  impl_->collect(tag, "exchange", from);
}
void Group::all_gather(Tag tag, std::span<const OutBlock> mine,
                       std::span<const std::vector<InBlock>> theirs) {
  impl_->send_all(tag, mine);
  impl_->collect(tag, "all-gather", theirs);
}
void Group::all_to_all(Tag tag, std::span<const std::vector<OutBlock>> to,
                       std::span<const std::vector<InBlock>> from) {
  impl_->send_each(tag, to);
  impl_->collect(tag, "all-to-all", from);
}
void Group::all_reduce_sum(Tag tag, Matrix values, const Codec& codec, Rounding rounding) {
  impl_->all_reduce_sum(tag, values, codec, rounding);
}
void Group::reduce_scatter_sum(Tag tag, std::span<const OutBlock> parts, Matrix mine) {
  impl_->reduce_scatter_sum(tag, parts, mine);
}
void Group::barrier(Tag tag) { impl_->barrier(tag); }
void Group::interrupt(const std::string& reason) { impl_->interrupt(reason); }
const Meters& Group::meters() const { return impl_->meters(); }

std::unique_ptr<Group> make_solo_group() {
  return std::make_unique<Group>(std::move(make_inproc_transports(1)[0]), GroupOptions{});
}

std::vector<std::unique_ptr<Group>> make_inproc_groups(int size, GroupOptions options) {
  std::vector<std::unique_ptr<Group>> groups;
  for (auto& transport : make_inproc_transports(size))
    groups.push_back(std::make_unique<Group>(std::move(transport), options));
  return groups;
}

}  // namespace modelet::comm
