// PeerMasks: random numbers that a rank adds to what it sends its peers (node_agent/replicas/rank_grid.h), so that
// nobody can read it, and that cancel each other in the sum over all peers (Bonawitz et al., CCS 2017).
//
// Each two peers agree on a key (X25519). Of the stream of numbers that it stands for (ChaCha20), one of them adds
// what the other subtracts, modulo 2^32 or 2^64. Whoever sees what a rank sends, and the keys of all peers but one
// honest one, sees uniformly random numbers. Keys are made for one group and kept in memory only. A group that is
// formed again has new ones, so no number is used twice.
//
// In a pool with keys the key of a pair also depends on the keys of the two agents (comm/security/keys.h). So masks cancel
// only if each peer has the secret key of the agent that it says it is: neither the scheduler, which passes on the keys of
// data sockets, nor whoever else stands between two peers can pose as one of them. An owner may name the agents with which
// it sums (PeerIdentity::known).
//
// There are no shares of keys for peers that drop out: a group that loses a rank does not finish the sum. It is
// formed again, and repeats it (docs/decisions/0037-private-data.md). A sum may be over some of the peers: these use only
// what they have agreed on with each other.
//
// Immutable but for next(); add() may be called from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/group.h"
#include "comm/security/keys.h"
#include "node_agent/replicas/participants.h"

namespace modelet::agent {

// Who a peer is.
struct PeerIdentity {
  std::optional<comm::KeyPair> own = {};  // none: the pool has no keys
  std::vector<std::string> known = {};    // public keys: each peer must have another one of these; empty: any
};

class PeerMasks {
 public:
  // All peers must make one at the same time. Throws PeerError if one is missing, FormatError if one gives no key, UsageError
  // if one is not known.
  PeerMasks(comm::Group& peers, comm::Tag tag, const PeerIdentity& identity = {});
  PeerMasks(const PeerMasks&) = delete;
  PeerMasks& operator=(const PeerMasks&) = delete;
  ~PeerMasks();

  // The stream of the next sum. All peers must call it in the same order.
  uint64_t next() { return next_++; }
  // Adds the numbers that stand at block `block` of a stream, for a sum over the peers `with`, of which this one must be.
  // Numbers of a stream must not be used twice: `words` takes blocks_of(words.size_bytes()) blocks.
  void add(uint64_t stream, uint64_t block, std::span<uint32_t> words, const ReplicaSet& with) const {
    add_words(stream, block, words, with);
  }
  void add(uint64_t stream, uint64_t block, std::span<uint64_t> words, const ReplicaSet& with) const {
    add_words(stream, block, words, with);
  }

  static constexpr size_t kBlockBytes = 64;
  static constexpr uint64_t blocks_of(size_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

 private:
  using Key = std::array<unsigned char, 32>;
  struct Peer {
    Key key;
    bool adds;  // else this rank subtracts
    size_t place;
  };

  template <class Word>
  void add_words(uint64_t stream, uint64_t block, std::span<Word> words, const ReplicaSet& with) const;

  std::vector<Peer> peers_;
  uint64_t next_ = 0;
};

}  // namespace modelet::agent
