// Options of a group (comm/collectives/group.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/system/clock.h"
#include "comm/messaging/algorithm.h"

namespace modelet::comm {

struct GroupOptions {
  uint64_t run = 0;    // identifies the run; messages of other runs are dropped
  uint32_t epoch = 1;  // membership epoch; grows when the group changes
  double timeout_seconds = 30;
  // By which the group waits. The transport must wait by the same clock.
  std::shared_ptr<const Clock> clock = std::make_shared<SteadyClock>();
  // Called when this rank misses another one, with the reason: the other's connection has ended, or an
  // operation has waited for it for `missing_seconds`. Each reason is reported once, until it holds no longer. The operation keeps waiting. Whoever knows that the rank is lost ends it
  // with Group::interrupt(). Called on the thread that uses the group.
  std::function<void(int rank, const std::string& why)> on_missing;
  // Called when such a rank is no longer missed: something has arrived from it, or its connection, the only
  // thing missed, is back. On the same thread.
  std::function<void(int rank)> on_found;
  double missing_seconds = 3;
  // The ranks of a grid's column wait this many times longer before they miss each other, and before they give
  // up. Rows at the same step may still be apart by the time of an evaluation, or of many steps of a faster row.
  double column_patience = 20;
  bool lz4 = false;                     // compress payloads that LZ4 makes smaller
  std::vector<std::string> node_names;  // [size], for error messages; may be empty
  size_t max_message_bytes = size_t{1} << 30;
  // Limits on early messages: those of operations that this rank has not reached yet. More is a PeerError.
  size_t max_waiting_messages = 4096;
  size_t max_waiting_bytes = size_t{2} << 30;
  // For tests and measurements: the algorithm of barrier and all-reduce, which must be the same on all
  // ranks. Empty: choose() decides.
  std::optional<Algorithm> algorithm;
  // An all-reduce by reduce-scatter processes this many bytes of the matrix (as fp32) at a time: while one
  // segment travels, the next is encoded.
  size_t segment_bytes = size_t{4} << 20;
};

}  // namespace modelet::comm
