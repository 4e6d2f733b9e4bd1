// Group: the collectives of one training group, over a Transport. What a rank sends and receives is blocks
// (comm/messaging/block.h): float matrices, each encoded with the codec that its sender chose, and bytes.
//
// A call either completes or throws. After an exception the caller's output blocks are unspecified, but
// nothing else has changed, so a new group can run the step again. The exceptions:
//
// - PeerError: a peer was silent for `timeout_seconds`, or does not read what it is sent. The text names
//   its rank, its node, the step and the operation. Silence counts from the start of the call, so it
//   includes the time that the peer computes.
// - FormatError: a peer of this group sent something damaged, or matrices of unexpected shapes.
// - Interrupted: somebody called interrupt().
// - Error: this rank's values cannot be encoded (int8: not finite), or exceed max_message_bytes.
//
// Three kinds of messages are dropped and counted: those of another run or membership epoch, those of
// operations that are over, and duplicates.
//
// One thread uses a Group; any thread may call interrupt(). Buffers are reused: calls and messages
// (comm/transport/transport.h) allocate memory only when more is under way than ever before.
//
// docs/wire_format.md has the cost of each operation in rounds and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/array/matrix.h"
#include "comm/codec/codec.h"
#include "comm/messaging/block.h"
#include "comm/messaging/group_options.h"
#include "comm/messaging/meters.h"
#include "comm/transport/transport.h"
#include "comm/wire/tag.h"

namespace modelet::comm {

struct Grid;

inline constexpr double kLeavePatience = 2;  // seconds; connections are back within tenths

class Group {
 public:
  Group(std::unique_ptr<Transport> transport, GroupOptions options);
  ~Group();

  int rank() const;
  int size() const;
  // The rank's name in GroupOptions, or "rank N" if there are no names.
  std::string node_name(int rank) const;

  // The two halves of an exchange, so that messages travel while the caller computes. Sending encodes and
  // queues the blocks, and does not wait. Any number of exchanges may be under way. Every rank takes part
  // in each of them, and begins and collects them in the order of their tags. An exchange is one round. `n`
  // is the size.
  // send_all() encodes the blocks once and sends (n-1) x own blocks. If `as_received` is not empty, it gets
  // the own blocks as the others will decode them. It may be the memory of `mine`.
  // send_each() sends to[r] to rank r; in all, the sum of to[r].
  void send_all(Tag tag, std::span<const OutBlock> mine, std::span<const InBlock> as_received = {});
  void send_each(Tag tag, std::span<const std::vector<OutBlock>> to);
  // Waits for what the other ranks sent with this tag. from[r] says where the blocks of rank r go.
  void collect(Tag tag, std::span<const std::vector<InBlock>> from);

  // Every rank sends `mine` to every other. theirs[r] says where the blocks of rank r go; this rank's own
  // entry is not used. Encodes once. One round; sends (n-1) x own blocks. Where ranks may come late because
  // they wait for something other than a peer, such as a disk, `patience` says how many times longer the others
  // wait for them and do not miss them.
  void all_gather(Tag tag, std::span<const OutBlock> mine, std::span<const std::vector<InBlock>> theirs,
                  double patience = 1);

  // Personalised exchange: to[r] is sent to rank r, and from[r] receives what rank r sent to this rank.
  // This rank's own entries are not used. One round; sends the sum of to[r].
  void all_to_all(Tag tag, std::span<const std::vector<OutBlock>> to,
                  std::span<const std::vector<InBlock>> from);

  // values = the sum of `values` over all ranks, for matrices of any size; choose() picks the algorithm.
  // Every rank gets the same bits. With the codec "none" these are the bits of a sum in rank order,
  // whatever the algorithm. A lossy codec rounds the values of each rank once. Algorithm::kReduceScatter
  // differs: it does not round what a rank adds to its own share, but it rounds the sum. In a group of one
  // nothing is rounded. After an exception `values` are unspecified, so a caller that wants to try again
  // needs a copy.
  void all_reduce_sum(Tag tag, Matrix values, const Codec& codec, Rounding rounding = kNearest);

  // Each rank has a matrix that is divided into one share for each rank. This rank gets the sum of all
  // ranks' shares[rank()] in `mine`, added in rank order. This rank's own share is not rounded. One round;
  // sends the shares of the others.
  void reduce_scatter_sum(Tag tag, std::span<const OutBlock> shares, Matrix mine);

  // Returns when every rank has called it. choose() picks the algorithm.
  void barrier(Tag tag);

  // The last operation, in two halves. say_farewell() tells the peers that this rank needs nothing more.
  // await_farewells() stays until the peers have said the same, so that this rank can send again what a broken
  // connection loses; at most `patience` seconds. Neither is an error if a peer has failed.
  void say_farewell(Tag tag);
  void await_farewells(double patience = kLeavePatience);

  void interrupt(const std::string& reason);
  // Throws Interrupted if somebody called interrupt(). For a caller that waits for something else.
  void throw_if_interrupted() const;

  const Meters& meters() const;
  const Clock& clock() const;  // by which the group waits

  // Arranges the ranks as a grid of `rows` rows: rank = row x columns + column. `rows` must divide the
  // number of ranks. Returns the groups of this rank's row and of its column. They use the connections of
  // this group, which must outlive them, and count in meters of their own. Interrupting this group
  // interrupts them, too. This group must run no operation while they exist.
  Grid grid(int rows);

 private:
  struct Impl;
  explicit Group(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Grid {
  std::unique_ptr<Group> row, column;
};

// A group of one, in which every operation is trivial. `modelet train --nodes 1` runs the same step code on
// it.
std::unique_ptr<Group> make_solo_group();
// n connected groups in this process, one per thread (tests, benchmarks).
std::vector<std::unique_ptr<Group>> make_inproc_groups(int size, GroupOptions options);

}  // namespace modelet::comm
