// Chooses the algorithm of a collective: the one that a cost model expects to end first. The model is
// fixed, not measured, because all ranks must make the same choice. docs/wire_format.md has the resulting
// table.
//
// The model: `n` ranks at one switch, with full-duplex links. kLatency is the time to hand a message to the
// wire, carry it and notice it. kMessage is CPU time at both ends; a rank spends it on one message after
// the other. kByte is the time of a byte at 1 Gbit/s.
#pragma once

#include <cstddef>
#include <cstdint>

namespace modelet::comm {

enum class Operation { kBarrier, kAllReduce };

enum class Algorithm {
  // Each rank sends to every other: one hop, n - 1 messages of s bytes. s is the size of one rank's
  // contribution.
  kDirect,
  // Dissemination (Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport
  // message-passing systems"): in hop h a rank passes on the contributions of up to 2^h ranks. ceil(log2 n)
  // hops of one message; also (n - 1) s bytes.
  kDissemination,
  // Reduce-scatter, then all-gather: two hops of n - 1 messages; 2 (n - 1)/n s bytes. Only for all-reduce.
  kReduceScatter,
};

// `bytes`: the most that one rank contributes. `ranks` >= 1.
Algorithm choose(Operation operation, size_t bytes, int ranks);

// The time that the model expects, in picoseconds. It is a whole number, because compilers may round
// floating-point numbers differently on different ranks.
uint64_t expected_cost(Algorithm algorithm, size_t bytes, int ranks);

}  // namespace modelet::comm
