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
#include "comm/grid_transport.h"
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

// Share of the time-out by which each further hop of a dissemination waits longer.
constexpr double kHopPatience = 0.05;
// Of an all-reduce in parts, so that its hops can be counted in a tag.
constexpr size_t kMaxPieces = 32'000;

// Whether somebody wants a group, and those of its grid, to end. Any thread.
class Interruption {
 public:
  void set(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  void throw_if_set() {
    const std::lock_guard lock(mutex_);
    if (reason_) throw Interrupted(*reason_);
  }

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace

class Group::Impl {
 public:
  Impl(std::unique_ptr<Transport> transport, GroupOptions options,
       std::shared_ptr<Interruption> interruption = std::make_shared<Interruption>())
      : transport_(std::move(transport)),
        options_(std::move(options)),
        interruption_(std::move(interruption)) {
    MODELET_CHECK(rank() >= 0 && rank() < size(), "the transport is not connected");
    MODELET_CHECK(options_.node_names.empty() || options_.node_names.size() == count());
    meters_.peers.resize(count());
    arrived_.resize(count());
    inbox_.resize(count());
    nothing_.resize(count());
    for (int distance = 1; distance < size(); ++distance) others_.push_back(rank_at(distance));
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
    interruption_->set(reason);
    transport_->interrupt(reason);
  }

  Grid grid(int rows) {
    GridTransports transports =
        make_grid_transports(*transport_, rows, {options_.max_waiting_messages, options_.max_waiting_bytes});
    const int columns = transports.row->size();
    const auto part = [&](std::unique_ptr<Transport> transport, int first, int distance) {
      GroupOptions options = options_;
      options.node_names.clear();
      for (int i = 0; i < transport->size() && !options_.node_names.empty(); ++i)
        options.node_names.push_back(node_name(first + i * distance));
      return std::unique_ptr<Group>(
          new Group(std::make_unique<Impl>(std::move(transport), std::move(options), interruption_)));
    };
    Grid grid = {part(std::move(transports.row), rank() / columns * columns, 1),
                 part(std::move(transports.column), rank() % columns, columns)};
    grid.column->impl_->options_.timeout_seconds *= options_.column_patience;
    return grid;
  }

  void barrier(Tag tag) {
    begin_send(tag, "barrier");
    if (algorithm(Operation::kBarrier, 0) == Algorithm::kDissemination) {
      disseminate({});
      return;
    }
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
    for (const int& rank : others_) {
      pack(to[static_cast<size_t>(rank)]);
      post(std::span(&rank, 1));
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
    const Algorithm how = algorithm(Operation::kAllReduce, codec.max_bytes(values.rows, values.cols));
    if (how == Algorithm::kReduceScatter) {
      all_reduce_in_parts(values, codec, rounding);
      return;
    }
    receive_into_scratch(values);
    const OutBlock mine{&codec, values, rounding};
    if (how == Algorithm::kDissemination) {
      disseminate(std::span(&mine, 1));
      decode_gathered();
    } else {
      send_to_all(std::span(&mine, 1));
      codec.decode(raw_, inbox_[own()][0]);
      collect(tag, "all-reduce", inbox_);
    }
    add_up(values);
  }

  void reduce_scatter_sum(Tag tag, std::span<const OutBlock> parts, Matrix mine) {
    MODELET_CHECK(parts.size() == count());
    const ConstMatrix own_part = parts[own()].values;
    MODELET_CHECK(own_part.rows == mine.rows && own_part.cols == mine.cols);
    begin_send(tag, "reduce-scatter");
    receive_into_scratch(mine);
    for (const int& rank : others_) {
      pack(parts.subspan(static_cast<size_t>(rank), 1));
      post(std::span(&rank, 1));
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
  using WaitingMap = std::map<std::pair<Tag, int>, Waiting>;  // by tag and sender

  size_t count() const { return static_cast<size_t>(size()); }
  size_t own() const { return static_cast<size_t>(rank()); }
  int rank_at(int distance) const { return (rank() + distance + size()) % size(); }
  Algorithm algorithm(Operation operation, size_t bytes) const {
    return options_.algorithm.value_or(choose(operation, bytes, size()));
  }

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
  PeerError too_late(double seconds) const {
    std::string missing;
    int first = -1;
    for (int peer = 0; peer < size(); ++peer) {
      if (arrived_[static_cast<size_t>(peer)]) continue;
      if (first < 0) first = peer;
      missing += (missing.empty() ? "" : " and ") + peer_name(peer);
    }
    const bool passes_on = passed_on_ > 1;
    return PeerError(
        first, fmt::format("no message from {} within {} s, {}: the node is dead, cut off or too slow{}",
                           missing, seconds, place(),
                           passes_on ? fmt::format(", or one of the {} after it, for which it waits itself",
                                                   passed_on_ - 1)
                                     : ""));
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
  void throw_if_interrupted() { interruption_->throw_if_set(); }

  // ---- sending
  void send_to_all(std::span<const OutBlock> blocks) {
    pack(blocks);
    post(others_);
  }

  // Encodes blocks into message_, ready to post.
  void pack(std::span<const OutBlock> blocks) {
    Stopwatch watch;
    size_t most = 0;
    for (const OutBlock& block : blocks) most += block.codec->max_bytes(block.values.rows, block.values.cols);
    message_ = {};  // if it has left already, its memory is the next one's
    message_ = messages_.take();
    const std::span<std::byte> raw = reserve(message_->payload_memory, most);
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
    seal();
    meters_.encode_seconds += watch.seconds();
  }

  // Completes message_, in whose memory outgoing_.raw_bytes of outgoing_.blocks lie.
  void seal() {
    outgoing_.tag = tag_;
    raw_ = std::span(message_->payload_memory).first(outgoing_.raw_bytes);
    message_->payload = compressed(raw_);
    outgoing_.payload_hash = payload_hash(message_->payload);
    const std::span<const std::byte> envelope = writer_.write(outgoing_);
    std::copy(envelope.begin(), envelope.end(), reserve(message_->envelope_memory, envelope.size()).begin());
    message_->envelope = std::span(message_->envelope_memory).first(envelope.size());
  }

  // What to send for `raw`, which is in message_: its LZ4 block if that is wanted and smaller; then raw is in
  // lz4_memory_ afterwards.
  std::span<const std::byte> compressed(std::span<const std::byte> raw) {
    const size_t used =
        options_.lz4 && !raw.empty() ? lz4_compress(raw, reserve(lz4_memory_, raw.size() - 1)) : 0;
    outgoing_.lz4 = used > 0;
    if (!outgoing_.lz4) return raw;
    message_->payload_memory.swap(lz4_memory_);
    return std::span(message_->payload_memory).first(used);
  }

  void post(std::span<const int> to) {
    try {
      transport_->send(to, message_);
    } catch (const PeerError& error) {
      throw PeerError(error.rank(), fmt::format("cannot send to {}, {}: {}", peer_name(error.rank()), place(),
                                                error.what()));
    }
    const size_t bytes = message_->envelope.size() + message_->payload.size();
    for (const int rank : to) {
      PeerMeter& meter = meters_.peers[static_cast<size_t>(rank)];
      meter.bytes_sent += bytes;
      ++meter.messages_sent;
    }
    meters_.raw_bytes += outgoing_values_ * sizeof(float) * to.size();
  }

  // ---- receiving
  // Waits until every peer's message of this operation has come; decodes each at once.
  void collect(std::span<const std::vector<InBlock>> from) {
    passed_on_ = 1;
    await(others_, options_.timeout_seconds,
          [&](size_t sender, const Envelope& envelope, std::span<const std::byte> payload) {
            decode(envelope.blocks, payload, from[sender]);
          });
  }

  // Waits for a message of this operation from each of the ranks `from`. Gives it, with its raw payload, to
  // deliver(sender, envelope, payload) at once.
  template <class Deliver>
  void await(std::span<const int> from, double timeout_seconds, const Deliver& deliver) {
    const double start = clock_.now(), deadline = start + timeout_seconds;
    arrived_.assign(count(), true);
    for (const int sender : from) arrived_[static_cast<size_t>(sender)] = false;
    size_t missing = from.size();
    missing -= take_waiting(deliver);
    Frame frame;
    while (missing > 0) {
      const double before = clock_.now();
      const bool got = receive(deadline - before, frame);
      const double now = clock_.now();
      meters_.wait_seconds += now - before;
      if (!got) throw too_late(timeout_seconds);
      if (!admit(frame)) continue;
      const auto sender = static_cast<size_t>(frame.from);
      if (incoming_.tag != tag_) {
        keep(std::move(frame));
      } else if (arrived_[sender]) {
        ++meters_.dropped_messages;
      } else {
        arrived_[sender] = true;
        meters_.peers[sender].wait_seconds += now - start;
        open(incoming_, frame, deliver);
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
    WaitingMap::node_type entry = unused_entry();
    entry.key() = {incoming_.tag, frame.from};
    std::swap(entry.mapped().envelope, incoming_);
    entry.mapped().frame = std::move(frame);
    WaitingMap::insert_return_type inserted = waiting_.insert(std::move(entry));
    if (inserted.inserted) {
      waiting_bytes_ += bytes;
    } else {
      ++meters_.dropped_messages;
      keep_unused(std::move(inserted.node));
    }
  }

  // Delivers the messages of this operation that came early; returns their number.
  template <class Deliver>
  size_t take_waiting(const Deliver& deliver) {
    size_t taken = 0;
    while (!waiting_.empty() && waiting_.begin()->first.first == tag_) {
      const auto first = waiting_.begin();
      const auto sender = static_cast<size_t>(first->first.second);
      if (arrived_[sender]) {
        ++meters_.dropped_messages;  // nothing is expected from that rank
      } else {
        arrived_[sender] = true;
        open(first->second.envelope, first->second.frame, deliver);
        ++taken;
      }
      forget(first);
    }
    return taken;
  }

  void forget(WaitingMap::iterator entry) {
    const Frame& frame = entry->second.frame;
    waiting_bytes_ -= frame.envelope.size() + frame.payload.size();
    keep_unused(waiting_.extract(entry));
  }

  // Entries of waiting_ are used again, with the memory that their envelopes have.
  WaitingMap::node_type unused_entry() {
    if (unused_entries_.empty()) {
      WaitingMap one;
      return one.extract(one.try_emplace({}).first);
    }
    WaitingMap::node_type entry = std::move(unused_entries_.back());
    unused_entries_.pop_back();
    return entry;
  }
  void keep_unused(WaitingMap::node_type entry) {
    entry.mapped().frame = {};
    unused_entries_.push_back(std::move(entry));
  }

  template <class Deliver>
  void open(const Envelope& envelope, const Frame& frame, const Deliver& deliver) {
    Stopwatch watch;
    try {
      deliver(static_cast<size_t>(frame.from), envelope,
              open_payload(envelope, frame.payload, options_.max_message_bytes, raw_incoming_));
    } catch (const FormatError& error) {
      throw malformed(frame.from, error);
    }
    meters_.decode_seconds += watch.seconds();
  }

  static void decode(std::span<const BlockHeader> headers, std::span<const std::byte> payload,
                     std::span<const InBlock> blocks) {
    if (headers.size() != blocks.size())
      throw FormatError(fmt::format("{} matrices, expected {}", headers.size(), blocks.size()));
    for (size_t i = 0; i < blocks.size(); ++i) {
      const BlockHeader& header = headers[i];
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

  // ---- dissemination
  // What the ranks at distance 0, 1, ... gave, encoded, into gathered_: hop by hop twice as many. It is
  // passed on as it came, so everybody decodes the same bytes. `mine`: as many blocks, of the same shapes, on
  // every rank.
  void disseminate(std::span<const OutBlock> mine) {
    gathered_headers_.clear();
    gathered_.clear();
    if (size() == 1) return;
    pack(mine);
    gather(outgoing_.blocks, raw_);
    for (int have = 1; have < size(); have *= 2, ++tag_.hop) {
      passed_on_ = std::min(have, size() - have);
      const size_t blocks = static_cast<size_t>(passed_on_) * mine.size();
      const int to = rank_at(-have), from = rank_at(have);
      if (have > 1) pack_gathered(blocks);
      post(std::span(&to, 1));
      begin_collect(tag_, operation_);
      // Each further hop waits a little longer, so that of all that wait because one rank is dead the one
      // that waits for it, and can name it, gives up first.
      await(std::span(&from, 1), options_.timeout_seconds * (1 + kHopPatience * tag_.hop),
            [&](size_t, const Envelope& envelope, std::span<const std::byte> payload) {
              if (envelope.blocks.size() != blocks)
                throw FormatError(fmt::format("{} matrices, expected {}", envelope.blocks.size(), blocks));
              gather(envelope.blocks, payload);
            });
    }
  }

  void gather(std::span<const BlockHeader> headers, std::span<const std::byte> bytes) {
    gathered_headers_.insert(gathered_headers_.end(), headers.begin(), headers.end());
    gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
  }

  // A message of the first `blocks` that were gathered.
  void pack_gathered(size_t blocks) {
    const Stopwatch watch;
    outgoing_.blocks.assign(gathered_headers_.begin(),
                            gathered_headers_.begin() + static_cast<ptrdiff_t>(blocks));
    outgoing_.raw_bytes = 0;
    outgoing_values_ = 0;
    for (const BlockHeader& block : outgoing_.blocks) {
      outgoing_.raw_bytes += block.bytes;
      outgoing_values_ += uint64_t{block.rows} * block.cols;
    }
    message_ = {};
    message_ = messages_.take();
    std::copy_n(gathered_.begin(), outgoing_.raw_bytes,
                reserve(message_->payload_memory, outgoing_.raw_bytes).begin());
    seal();
    meters_.encode_seconds += watch.seconds();
  }

  // One matrix of each rank, into inbox_.
  void decode_gathered() {
    const Stopwatch watch;
    std::span<const std::byte> bytes(gathered_);
    for (int distance = 0; distance < size(); ++distance) {
      const int giver = rank_at(distance);
      const BlockHeader& header = gathered_headers_[static_cast<size_t>(distance)];
      try {
        decode(std::span(&header, 1), bytes, inbox_[static_cast<size_t>(giver)]);
      } catch (const FormatError& error) {
        throw malformed(giver, error);
      }
      bytes = bytes.subspan(header.bytes);
    }
    meters_.decode_seconds += watch.seconds();
  }

  // ---- all-reduce in parts
  // Reduce-scatter, then all-gather, a piece of the matrix at a time. Two pieces are under way: while the
  // parts of one travel, those of the next are encoded.
  void all_reduce_in_parts(Matrix values, const Codec& codec, Rounding rounding) {
    const size_t bytes = values.rows * values.cols * sizeof(float);
    const size_t pieces =
        std::clamp<size_t>((bytes + options_.piece_bytes - 1) / options_.piece_bytes, 1, kMaxPieces);
    const Tag tag = tag_;
    const auto at_hop = [&](size_t hop) {
      tag_ = tag;
      tag_.hop = static_cast<uint16_t>(hop);
      return tag_;
    };
    const auto send_parts = [&](size_t piece) {
      if (piece >= pieces) return;
      at_hop(2 * piece);
      for (const int& to : others_)
        send_part(part_of(values, pieces, piece, to), codec, rounding, to, std::span(&to, 1));
    };
    send_parts(0);
    send_parts(1);
    for (size_t piece = 0; piece <= pieces; ++piece) {
      if (piece < pieces) {
        const Matrix mine = part_of(values, pieces, piece, rank());
        receive_into_scratch(mine);
        copy(mine, inbox_[own()][0]);
        collect(at_hop(2 * piece), "all-reduce", inbox_);
        add_up(mine);
        at_hop(2 * piece + 3);
        send_part(mine, codec, rounding, rank(), others_);
        codec.decode(raw_, mine);  // as the others see it
        send_parts(piece + 2);
      }
      if (piece > 0) {
        for (size_t r = 0; r < count(); ++r)
          inbox_[r].assign(1, part_of(values, pieces, piece - 1, static_cast<int>(r)));
        collect(at_hop(2 * (piece - 1) + 3), "all-reduce", inbox_);
      }
    }
  }

  void send_part(ConstMatrix part, const Codec& codec, Rounding rounding, int of, std::span<const int> to) {
    if (!rounding.to_nearest())
      rounding.seed = Rng(rounding.seed, {static_cast<uint64_t>(of), tag_.hop}).next();
    const OutBlock block{&codec, part, rounding};
    pack(std::span(&block, 1));
    post(to);
  }

  // Rows of a piece of the matrix that belong to a rank; columns where there are fewer rows than ranks. May
  // be empty.
  Matrix part_of(Matrix values, size_t pieces, size_t piece, int rank) const {
    const bool rows = values.rows >= count() * pieces;
    const size_t length = rows ? values.rows : values.cols, parts = pieces * count();
    const size_t i = piece * count() + static_cast<size_t>(rank);
    const size_t begin = length * i / parts, end = length * (i + 1) / parts;
    return rows ? values.row_range(begin, end - begin) : values.columns(begin, end - begin);
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
  // In the order in which they are sent to. Each rank begins with another one, so that not everybody sends to
  // the same one first.
  std::vector<int> others_;
  SteadyClock clock_;
  Meters meters_;
  const std::shared_ptr<Interruption> interruption_;

  // The operation that runs, or ran last.
  Tag tag_;
  const char* operation_ = "";
  std::optional<Tag> sent_, collected_;  // of the last ones
  std::vector<bool> arrived_;            // [size]; also those from which nothing is expected
  int passed_on_ = 1;                    // ranks whose values come with one message

  // The message to send: packed once, posted once or more.
  EnvelopeWriter writer_;
  Envelope outgoing_;
  uint64_t outgoing_values_ = 0;
  Pool<Message> messages_;
  PoolPtr<Message> message_;
  std::span<const std::byte> raw_;  // its payload before LZ4, as long as neither is used again
  AlignedVector<std::byte> lz4_memory_;

  // The message received last, and early ones.
  Envelope incoming_;
  std::vector<std::byte> raw_incoming_;
  WaitingMap waiting_;
  std::vector<WaitingMap::node_type> unused_entries_;
  size_t waiting_bytes_ = 0;

  // What dissemination has gathered so far: of the ranks at distance 0, 1, ...
  std::vector<BlockHeader> gathered_headers_;
  std::vector<std::byte> gathered_;

  AlignedVector<float> scratch_;               // of the sums
  std::vector<std::vector<InBlock>> nothing_;  // [size] of a barrier: all empty
  std::vector<std::vector<InBlock>> inbox_;    // [size] views of scratch_
};

Group::Group(std::unique_ptr<Transport> transport, GroupOptions options)
    : impl_(std::make_unique<Impl>(std::move(transport), std::move(options))) {}
Group::Group(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
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
Grid Group::grid(int rows) { return impl_->grid(rows); }

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
