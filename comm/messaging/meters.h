// Counts what a rank has sent to each peer and received from it. Bytes are counted at the transport, so
// headers are included.
#pragma once

#include <cstdint>
#include <vector>

namespace modelet::comm {

struct PeerMeter {
  uint64_t bytes_sent = 0, bytes_received = 0;  // envelope + payload
  uint64_t messages_sent = 0, messages_received = 0;
  uint64_t messages_sent_again = 0;  // after a connection was lost; not in messages_sent
  double wait_seconds = 0;           // from the start of each wait until this peer's message
};

struct Meters {
  std::vector<PeerMeter> peers;   // [size]; this rank's own entry stays zero
  uint64_t raw_bytes = 0;         // size of what was sent if it were not encoded: matrices as fp32
  uint64_t dropped_messages = 0;  // of another run or epoch, late, duplicate, or a stranger's
  double encode_seconds = 0, decode_seconds = 0;  // including LZ4 and checksum
  double wait_seconds = 0;                        // spent waiting for messages and doing nothing else

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
