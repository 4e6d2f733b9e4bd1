// Which algorithm a collective uses: the one that a cost model expects to end first. The model is fixed, not
// measured, because all ranks must come to the same choice. docs/wire_format.md has the table that follows
// from it.
//
// The model: `n` ranks at a switch, each link full-duplex. kLatency passes until a message is handed to the
// wire, carried and noticed. kMessage is CPU time at both ends; the messages of a rank take it one after the
// other. kByte is 1 Gbit/s.
#pragma once

#include <cstddef>
#include <cstdint>

namespace modelet::comm {

enum class Operation { kBarrier, kAllReduce };

enum class Algorithm {
  // Each rank sends to every other: one hop, n - 1 messages of s bytes.
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

// The time that the model expects, in picoseconds. Whole numbers, so that no rank's compiler rounds them
// differently.
uint64_t expected_cost(Algorithm algorithm, size_t bytes, int ranks);

}  // namespace modelet::comm
