#include "comm/messaging/messenger.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/system/log.h"

namespace modelet::comm {
namespace {

constexpr const char *kIsSilent = "is silent", *kHasNoConnection = "has closed its connection";

// `encoded` has header.bytes bytes.
void decode_matrix(size_t i, const BlockHeader& header, std::span<const std::byte> encoded, Matrix into) {
  if (header.rows != into.rows || header.cols != into.cols)
    throw FormatError(fmt::format("matrix {} is {} x {}, expected {} x {}", i, header.rows, header.cols,
                                  into.rows, into.cols));
  const Codec* codec = find_codec(header.codec);
  if (codec == nullptr) throw FormatError(fmt::format("matrix {} has the unknown codec {}", i, header.codec));
  codec->decode(encoded, into);
}

void decode_bytes(size_t i, const BlockHeader& header, std::span<const std::byte> encoded,
                  std::span<std::byte> into) {
  if (header.codec != kBytesBlock || encoded.size() != into.size())
    throw FormatError(fmt::format("block {} is of codec {} and {} bytes, expected {} plain bytes", i,
                                  header.codec, encoded.size(), into.size()));
  std::ranges::copy(encoded, into.begin());
}

// The payload has the length that the headers say: parse_envelope() checked it.
void decode_blocks(std::span<const BlockHeader> headers, std::span<const std::byte> payload,
                   std::span<const InBlock> blocks) {
  if (headers.size() != blocks.size())
    throw FormatError(fmt::format("{} blocks, expected {}", headers.size(), blocks.size()));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto encoded = payload.first(headers[i].bytes);
    if (const Matrix* matrix = std::get_if<Matrix>(&blocks[i]))
      decode_matrix(i, headers[i], encoded, *matrix);
    else
      decode_bytes(i, headers[i], encoded, std::get<std::span<std::byte>>(blocks[i]));
    payload = payload.subspan(encoded.size());
  }
}

}  // namespace

Messenger::Messenger(std::unique_ptr<Transport> transport, GroupOptions options,
                     std::shared_ptr<Interruption> interruption)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      interruption_(std::move(interruption)),
      outgoing_(options_.run, options_.epoch, rank(), options_.lz4),
      unconfirmed_(static_cast<size_t>(transport_->size())),
      early_(options_.max_waiting_messages, options_.max_waiting_bytes) {
  MODELET_CHECK(rank() >= 0 && rank() < size(), "the transport is not connected");
  MODELET_CHECK(options_.node_names.empty() || options_.node_names.size() == count());
  meters_.peers.resize(count());
  arrived_.resize(count());
  missed_.resize(count());
  transport_->when_connections_change(
      [this](int peer, Transport::Connection what) { connection_changed(peer, what); });
  for (int distance = 1; distance < size(); ++distance) others_.push_back(rank_at(distance));
}

std::string Messenger::node_name(int rank) const {
  return options_.node_names.empty() ? fmt::format("rank {}", rank)
                                     : options_.node_names[static_cast<size_t>(rank)];
}

Algorithm Messenger::algorithm(Operation operation, size_t bytes) const {
  return options_.algorithm.value_or(choose(operation, bytes, size()));
}

void Messenger::interrupt(const std::string& reason) {
  interruption_->set(reason);
  transport_->interrupt(reason);
}

// ---- what errors say

std::string Messenger::peer_name(int peer) const {
  if (options_.node_names.empty()) return fmt::format("rank {}", peer);
  return fmt::format("rank {} (node {})", peer, options_.node_names[static_cast<size_t>(peer)]);
}

std::string Messenger::place() const {
  return fmt::format("at step {}, round {} ({})", tag_.step, tag_.round, operation_);
}

FormatError Messenger::malformed(int from, const FormatError& error) const {
  return FormatError(fmt::format("message from {}, {}: {}", peer_name(from), place(), error.what()));
}

PeerError Messenger::too_late(double seconds, int passed_on) const {
  std::string missing;
  int first = -1;
  for (int peer = 0; peer < size(); ++peer) {
    if (arrived_[static_cast<size_t>(peer)]) continue;
    if (first < 0) first = peer;
    missing += (missing.empty() ? "" : " and ") + peer_name(peer);
  }
  const std::string others =
      passed_on > 1 ? fmt::format(", or one of the {} after it, for which it waits itself", passed_on - 1)
                    : "";
  return PeerError(first,
                   fmt::format("no message from {} within {} s, {}: the node is dead, cut off or too slow{}",
                               missing, seconds, place(), others));
}

void Messenger::miss(int peer, const char* reason) {
  std::vector<const char*>& reported = missed_[static_cast<size_t>(peer)];
  if (is_leaving_ || !options_.on_missing || std::ranges::find(reported, reason) != reported.end()) return;
  reported.push_back(reason);
  options_.on_missing(peer, fmt::format("{} {}, {}", peer_name(peer), reason, place()));
}

void Messenger::miss_silent_peers() {
  for (int peer = 0; peer < size(); ++peer)
    if (!arrived_[static_cast<size_t>(peer)]) miss(peer, kIsSilent);
}

// `heard`: something has arrived from the peer. If not, only its connection is back. Returns whether the peer
// was missed until now.
bool Messenger::found(int peer, bool has_arrived) {
  std::vector<const char*>& reported = missed_[static_cast<size_t>(peer)];
  if (reported.empty()) return false;
  std::erase_if(reported, [&](const char* reason) { return has_arrived || reason == kHasNoConnection; });
  if (!reported.empty()) return false;
  log_info("{} is not missed any more, {}", peer_name(peer), place());
  if (options_.on_found && !is_leaving_) options_.on_found(peer);
  return true;
}

// ---- operations

void Messenger::begin_send(Tag tag, const char* operation) {
  begin(tag, operation);
  MODELET_CHECK(!sent_ || tag > *sent_, "tags of what a group sends must grow");
  sent_ = tag;
}

void Messenger::begin_collect(Tag tag, const char* operation) {
  begin(tag, operation);
  MODELET_CHECK(!collected_ || tag > *collected_, "tags of what a group collects must grow");
  collected_ = needs_from_ = tag;
  meters_.dropped_messages += early_.drop_before(tag);
}

void Messenger::begin(Tag tag, const char* operation) {
  // Without this check a rank that has nothing to receive, as in a group of one, would not notice an
  // interruption.
  interruption_->throw_if_set();
  tag_ = tag;
  operation_ = operation;
}

void Messenger::go_on_at(size_t hop) { tag_.hop = static_cast<uint16_t>(hop); }

// ---- sending

void Messenger::pack(std::span<const OutBlock> blocks) {
  Stopwatch watch;
  outgoing_.encode(blocks);
  check_size();
  outgoing_.seal(tag_, needs_from_);
  meters_.encode_seconds += watch.seconds();
}

void Messenger::pack(std::span<const BlockHeader> blocks, std::span<const std::byte> bytes) {
  Stopwatch watch;
  outgoing_.assemble(blocks, bytes);
  outgoing_.seal(tag_, needs_from_);
  meters_.encode_seconds += watch.seconds();
}

void Messenger::check_size() const {
  const size_t bytes = std::max<size_t>(outgoing_.raw().size(), outgoing_.plain_bytes());
  if (bytes > options_.max_message_bytes)
    throw Error(fmt::format("message of {} bytes, {}: over the limit of {} bytes: use a smaller train.batch",
                            bytes, place(), options_.max_message_bytes));
}

void Messenger::post(std::span<const int> to) {
  for (const int rank : to) unconfirmed_.add(rank, tag_, outgoing_.message());
  send(to, outgoing_.message());
  for (const int rank : to) {
    PeerMeter& meter = meters_.peers[static_cast<size_t>(rank)];
    meter.bytes_sent += outgoing_.bytes();
    ++meter.messages_sent;
  }
  meters_.raw_bytes += outgoing_.plain_bytes() * to.size();
}

void Messenger::send(std::span<const int> to, const RecycledPtr<Message>& message) {
  try {
    transport_->send(to, message);
  } catch (const PeerError& error) {
    throw PeerError(error.rank(),
                    fmt::format("cannot send to {}, {}: {}", peer_name(error.rank()), place(), error.what()));
  }
}

void Messenger::connection_changed(int peer, Transport::Connection what) {
  if (what == Transport::Connection::kEnded) return miss(peer, kHasNoConnection);
  found(peer, false);
  const auto messages = unconfirmed_.to(peer);
  log_info("the connection to {} is back, {}: {} messages are sent again", peer_name(peer), place(),
           messages.size());
  for (const Unconfirmed::Sent& sent : messages) send(std::span(&peer, 1), sent.message);
  meters_.peers[static_cast<size_t>(peer)].messages_sent_again += messages.size();
}

// ---- receiving

void Messenger::collect(std::span<const std::vector<InBlock>> from, double patience) {
  struct Decoder final : Receiver {
    explicit Decoder(std::span<const std::vector<InBlock>> blocks) : into(blocks) {}
    void receive(size_t sender, const Envelope& envelope, std::span<const std::byte> payload) override {
      decode_blocks(envelope.blocks, payload, into[sender]);
    }
    std::span<const std::vector<InBlock>> into;
  };
  Decoder decoder(from);
  await(others_, patience, decoder);
}

void Messenger::await(std::span<const int> from, double patience, Receiver& receiver, int passed_on) {
  const double timeout_seconds = patience * options_.timeout_seconds,
               missing_seconds = patience * options_.missing_seconds;
  const double start = options_.clock->now(), deadline = start + timeout_seconds;
  double silent = std::min(start + missing_seconds, deadline);
  bool reported_silence = !options_.on_missing;
  arrived_.assign(count(), true);
  for (const int sender : from) arrived_[static_cast<size_t>(sender)] = false;
  size_t missing = from.size();
  missing -= take_early(receiver);
  Frame frame;
  while (missing > 0) {
    const double before = options_.clock->now();
    if (!reported_silence && before >= silent) {
      miss_silent_peers();
      reported_silence = true;
    }
    const bool got = receive((reported_silence ? deadline : silent) - before, frame);
    const double now = options_.clock->now();
    meters_.wait_seconds += now - before;
    if (!got && now >= deadline) throw too_late(timeout_seconds, passed_on);
    if (!got) continue;
    if (found(frame.from, true) && reported_silence) {  // it is missed again if what is awaited does not come
      reported_silence = false;
      silent = std::min(now + missing_seconds, deadline);
    }
    if (!admit(frame)) continue;
    const auto sender = static_cast<size_t>(frame.from);
    if (incoming_.tag != tag_) {
      keep(std::move(frame));
    } else if (arrived_[sender]) {
      ++meters_.dropped_messages;
    } else {
      arrived_[sender] = true;
      meters_.peers[sender].wait_seconds += now - start;
      open(incoming_, frame, receiver);
      --missing;
    }
  }
  needs_from_ = {tag_.step, tag_.round, static_cast<uint16_t>(tag_.hop + 1)};
}

void Messenger::say_farewell(Tag tag) {
  is_leaving_ = true;
  begin_send(tag, "leave");
  begin_collect();
  send_to_all({});
}

void Messenger::await_farewells(double patience) {
  arrived_.assign(count(), false);
  arrived_[own()] = true;
  // A peer that is ahead may have said so before.
  for (; const EarlyMessage* message = early_.first(tag_); early_.pop())
    arrived_[static_cast<size_t>(message->frame.from)] = true;
  const double deadline = options_.clock->now() + patience;
  for (Frame frame; std::ranges::find(arrived_, false) != arrived_.end() && options_.clock->now() < deadline;)
    if (receive(deadline - options_.clock->now(), frame) && admit(frame) && incoming_.tag == tag_)
      arrived_[static_cast<size_t>(frame.from)] = true;
}

bool Messenger::receive(double seconds, Frame& frame) {
  const uint64_t dropped = transport_->dropped_messages();
  const bool got = transport_->receive(seconds, frame);
  meters_.dropped_messages += transport_->dropped_messages() - dropped;
  return got;
}

// Counts and parses a message. False if it belongs to another run or epoch, or to an operation that is
// over.
bool Messenger::admit(const Frame& frame) {
  PeerMeter& meter = meters_.peers[static_cast<size_t>(frame.from)];
  meter.bytes_received += frame.envelope.size() + frame.payload.size();
  ++meter.messages_received;
  try {
    parse_envelope(frame.envelope, options_.max_message_bytes, incoming_, envelope_scratch_);
  } catch (const FormatError& error) {
    throw malformed(frame.from, error);
  }
  const bool ours = incoming_.run == options_.run && incoming_.epoch == options_.epoch &&
                    incoming_.sender == static_cast<uint32_t>(frame.from);
  if (ours) unconfirmed_.confirm(frame.from, incoming_.needs_from);
  if (ours && incoming_.tag >= tag_) return true;
  ++meters_.dropped_messages;
  return false;
}

void Messenger::keep(Frame frame) {
  if (!early_.has_room_for(frame))
    throw PeerError(frame.from,
                    fmt::format("{} is too far ahead, {}: {} early messages ({} bytes) wait already",
                                peer_name(frame.from), place(), early_.size(), early_.bytes()));
  if (!early_.keep(incoming_, std::move(frame))) ++meters_.dropped_messages;
}

// Passes on the messages of this operation that came early. Returns their number.
size_t Messenger::take_early(Receiver& receiver) {
  size_t taken = 0;
  for (; const EarlyMessage* message = early_.first(tag_); early_.pop()) {
    const auto sender = static_cast<size_t>(message->frame.from);
    if (arrived_[sender]) {
      ++meters_.dropped_messages;  // nothing is expected from that rank
      continue;
    }
    arrived_[sender] = true;
    open(message->envelope, message->frame, receiver);
    ++taken;
  }
  return taken;
}

void Messenger::open(const Envelope& envelope, const Frame& frame, Receiver& receiver) {
  Stopwatch watch;
  try {
    receiver.receive(static_cast<size_t>(frame.from), envelope,
                     open_payload(envelope, frame.payload, options_.max_message_bytes, raw_incoming_));
  } catch (const FormatError& error) {
    throw malformed(frame.from, error);
  }
  meters_.decode_seconds += watch.seconds();
}

void Messenger::decode(int from, std::span<const BlockHeader> headers, std::span<const std::byte> payload,
                       std::span<const InBlock> blocks) {
  const Stopwatch watch;
  try {
    decode_blocks(headers, payload, blocks);
  } catch (const FormatError& error) {
    throw malformed(from, error);
  }
  meters_.decode_seconds += watch.seconds();
}

}  // namespace modelet::comm
