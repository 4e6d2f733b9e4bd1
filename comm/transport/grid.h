// Arranges the ranks of one transport as a grid, rank = row x columns + column (a process grid, as in 2D
// matrix algorithms), and gives this rank a transport for its row and one for its column, over the
// connections of the whole. A rank meets each peer in its row or in its column, never in both, so the sender
// of a message determines which of the two it is for. Ranks that share neither row nor column send each other
// nothing.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/transport/transport.h"

namespace modelet::comm {

struct GridTransports {
  std::unique_ptr<Transport> row;     // [columns] rank: the column
  std::unique_ptr<Transport> column;  // [rows] rank: the row
};

// Limits on what may wait for one of the two while the other receives.
struct GridLimits {
  size_t waiting_messages, waiting_bytes;
};

// `rows` divides the size of `whole`, which must outlive the two and is not received from meanwhile. One
// thread uses both. interrupt() of either may be called as in Transport and wakes whichever receives. A
// message for one that comes while the other receives is kept; more than `limits` is a PeerError.
GridTransports make_grid_transports(Transport& whole, int rows, const GridLimits& limits);

}  // namespace modelet::comm
