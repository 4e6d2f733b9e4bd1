// What a node has sent and received, per peer: counted where the transport hands over bytes, so headers are
// included.
#pragma once

#include <cstdint>
#include <vector>

namespace modelet::comm {

struct PeerMeter {
  uint64_t bytes_sent = 0, bytes_received = 0;  // envelope + payload
  uint64_t messages_sent = 0, messages_received = 0;
  uint64_t messages_sent_again = 0;  // after the connection was lost; not among the former
  double wait_seconds = 0;           // from the start of waiting in each call to this peer's message
};

struct Meters {
  std::vector<PeerMeter> peers;   // [size]; the own entry stays zero
  uint64_t raw_bytes = 0;         // what was sent, without encoding: matrices as fp32
  uint64_t dropped_messages = 0;  // of another run or epoch, late, duplicate, or from a stranger
  double encode_seconds = 0, decode_seconds = 0;  // including LZ4 and checksum
  double wait_seconds = 0;                        // spent only waiting for messages

  uint64_t bytes_sent() const {
    uint64_t sum = 0;
    for (const PeerMeter& peer : peers) sum += peer.bytes_sent;
    return sum;
  }
  uint64_t bytes_received() const {
    uint64_t sum = 0;
    for (const PeerMeter& peer : peers) sum += peer.bytes_received;
    return sum;
  }
};

}  // namespace modelet::comm
