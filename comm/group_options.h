// What a group is told when it is made (comm/group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/algorithm.h"

namespace modelet::comm {

struct GroupOptions {
  uint64_t run = 0;    // identifies the run; a message of another run is refused
  uint32_t epoch = 1;  // membership epoch; grows when the group changes (DESIGN section 5)
  double timeout_seconds = 30;
  // Times as long ranks of a grid's column wait for each other: rows that are equally far may be apart by an
  // evaluation or by many steps of a faster one.
  double column_patience = 20;
  bool lz4 = false;                     // compress payloads of which LZ4 saves something
  std::vector<std::string> node_names;  // [size], for error messages; may be empty
  size_t max_message_bytes = size_t{1} << 30;
  // Early messages, of operations this rank has not reached, are kept; more than this is a PeerError.
  size_t max_waiting_messages = 4096;
  size_t max_waiting_bytes = size_t{2} << 30;
  // For tests and measurements: what barrier and all-reduce use, on all ranks alike. None: choose().
  std::optional<Algorithm> algorithm;
  // An all-reduce in parts treats this much of the matrix at a time (fp32 bytes): while one piece travels,
  // the next is encoded.
  size_t piece_bytes = size_t{4} << 20;
};

}  // namespace modelet::comm
