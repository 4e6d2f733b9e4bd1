// Group: the collectives of one training group, over a Transport. Blocks go in and come out
// (comm/messaging/block.h): float matrices, each encoded with the codec that its sender chose, and bytes.
//
// A call either completes, or throws and leaves the caller's output blocks unspecified but nothing else
// changed, so that a new group can run the step again. It throws:
//
// - PeerError: a peer is silent for `timeout_seconds`, or does not read; the text names its rank, its node,
//   step and operation. Silence counts from the start of the call, so it includes what the peer computes.
// - FormatError: a peer of this group sent something damaged, or matrices of unexpected shapes.
// - Interrupted: after interrupt().
// - Error: this rank's values cannot be encoded (int8: not finite), or exceed max_message_bytes.
//
// Messages of another run or membership epoch, of operations that are over, and duplicates are dropped and
// counted.
//
// One thread uses a Group; interrupt() may be called from any thread. Buffers are reused: calls and
// messages (comm/transport/transport.h) take memory only when more is under way than ever before.
//
// Cost of each operation in rounds and bytes: docs/wire_format.md.
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

class Group {
 public:
  Group(std::unique_ptr<Transport> transport, GroupOptions options);
  ~Group();

  int rank() const;
  int size() const;
  // The name in GroupOptions; "rank N" if there are no names.
  std::string node_name(int rank) const;

  // The two halves of an exchange, so that messages travel while the caller computes. Sending does not wait:
  // the blocks are encoded and queued. Any number of exchanges may be under way. A rank begins and collects
  // them in the order of their tags, and every rank takes part in each. One round; sends (n-1) x own blocks,
  // encoded once, or the sum of to[r]. `as_received`: empty, or where the own blocks go as the others will
  // decode them; may be the same memory.
  void send_all(Tag tag, std::span<const OutBlock> mine, std::span<const InBlock> as_received = {});
  void send_each(Tag tag, std::span<const std::vector<OutBlock>> to);
  // Waits for what the others sent with this tag; `from` [size] lists where each rank's blocks go.
  void collect(Tag tag, std::span<const std::vector<InBlock>> from);

  // Every rank gives `mine` to every other. `theirs` [size] lists where each rank's blocks go (the own entry
  // is unused). Encodes once. One round; sends (n-1) x own blocks.
  void all_gather(Tag tag, std::span<const OutBlock> mine, std::span<const std::vector<InBlock>> theirs);

  // Personalised exchange: `to[r]` goes to rank r, `from[r]` receives what r sent to this rank (own entries
  // unused). One round; sends the sum of to[r].
  void all_to_all(Tag tag, std::span<const std::vector<OutBlock>> to,
                  std::span<const std::vector<InBlock>> from);

  // values = sum over ranks, of matrices of any size; choose() decides how. Every rank gets the same bits.
  // With the codec "none" they are those of a sum in rank order, whatever the algorithm. With a lossy codec
  // the values of each rank are rounded once. In parts (Algorithm::kReduceScatter) what a rank adds to its
  // own part is not rounded, but the sum is, once more. In a group of one nothing is rounded. After an
  // exception `values` are unspecified: a caller that wants to try again needs a copy.
  void all_reduce_sum(Tag tag, Matrix values, const Codec& codec, Rounding rounding = kNearest);

  // Sum over ranks of matrices that are divided into one part per rank: this rank gets the sum of
  // part[rank()] in `mine`, added in rank order; its own part is not rounded. One round; sends the parts of
  // the others.
  void reduce_scatter_sum(Tag tag, std::span<const OutBlock> parts, Matrix mine);

  // Returns when every rank has called it; choose() decides how it works.
  void barrier(Tag tag);

  void interrupt(const std::string& reason);

  const Meters& meters() const;

  // Arranges the ranks as a grid of `rows`, which divide their number: rank = row x columns + column. Returns
  // the groups of this rank's row and column. They share the connections of this group, count in meters of
  // their own, and end with it when it is interrupted. While they live this group runs no operation; it must
  // outlive them.
  Grid grid(int rows);

 private:
  struct Impl;
  explicit Group(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Grid {
  std::unique_ptr<Group> row, column;
};

// A group of one: every operation is trivial. `modelet train --nodes 1` runs the same step code on it.
std::unique_ptr<Group> make_solo_group();
// n connected groups in this process, one per thread (tests, benchmarks).
std::vector<std::unique_ptr<Group>> make_inproc_groups(int size, GroupOptions options);

}  // namespace modelet::comm
