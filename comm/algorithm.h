// Which algorithm a collective uses: the one that a cost model expects to end first. The model is fixed, not
// measured: all ranks must come to the same choice. docs/wire_format.md has the table that follows from it.
//
// `n` ranks at a switch, each link full-duplex; a message takes kLatency to be handed to the wire, carried
// and noticed; kMessage of both ends' time, and every further one of a rank waits for those before it; kByte
// is 1 Gbit/s.
#pragma once

#include <cstddef>
#include <cstdint>

namespace modelet::comm {

enum class Operation { kBarrier, kAllReduce };

enum class Algorithm {
  // Everybody sends to everybody: one hop, n - 1 messages of s bytes.
  kDirect,
  // Dissemination (Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport
  // message-passing systems"): in hop h a rank passes on what it has of 2^h ranks. ceil(log2 n) hops of one
  // message; the same (n - 1) s bytes.
  kDissemination,
  // Reduce-scatter, then all-gather: two hops of n - 1 messages; 2 (n - 1)/n s bytes. Only for all-reduce.
  kReduceScatter,
};

// `bytes`: of one rank's contribution, at most; `ranks` >= 1.
Algorithm choose(Operation operation, size_t bytes, int ranks);

// What the model expects, in picoseconds. Whole numbers: no rank's compiler rounds them differently.
uint64_t expected_cost(Algorithm algorithm, size_t bytes, int ranks);

}  // namespace modelet::comm
