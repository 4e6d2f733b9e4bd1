// Arranges the ranks of one transport as a process grid, as in 2D matrix algorithms: rank = row x columns +
// column. This rank gets a transport for its row and one for its column. Both use the connections of the
// whole transport. Each peer is in this rank's row or in its column, never in both, so the sender of a
// message determines which of the two transports it is for. Ranks that share neither row nor column send
// each other nothing.
#pragma once

#include <cstddef>
#include <memory>

#include "base/system/clock.h"
#include "comm/transport/transport.h"

namespace modelet::comm {

struct GridTransports {
  std::unique_ptr<Transport> row;     // [columns]; its rank is this rank's column
  std::unique_ptr<Transport> column;  // [rows]; its rank is this rank's row
};

struct GridOptions {
  // Limits on the messages that wait for one of the two transports while the other receives.
  size_t waiting_messages, waiting_bytes;
  std::shared_ptr<const Clock> clock;
};

// `rows` must divide the size of `whole`. `whole` must outlive both transports, and nobody else may receive
// from it meanwhile. One thread uses both. Any thread may call interrupt() of either, which wakes the one
// that is receiving. A message that arrives for one while the other receives is kept. More messages than
// the limits allow are a PeerError.
GridTransports make_grid_transports(Transport& whole, int rows, const GridOptions& options);

}  // namespace modelet::comm
