// The hidden layers' forward pass over a group: each rank computes the columns of its modelets, an all-gather
// a layer gives every rank the whole activations. Training and evaluation share it. One thread; owns the
// activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix.h"
#include "base/sample_range.h"
#include "comm/group.h"
#include "node_agent/codec_choice.h"
#include "node_agent/sharding.h"
#include "shard/data/batch.h"
#include "shard/network.h"

namespace modelet::agent {

class ShardedForward {
 public:
  // All arguments must outlive it. Without `codecs` activations travel exactly. `dropout`: share of each
  // layer's activations that is left out, in training.
  ShardedForward(shard::Network& network, const Sharding& sharding, comm::Group& group,
                 CodecChoice* codecs = nullptr, float dropout = 0);

  // Computes the activations of all hidden layers. Uses rounds tag.round .. tag.round + hidden layers - 1.
  void run(const shard::Batch& batch, comm::Tag tag);

  // The same in pieces of the batch, so that activations travel while the caller does something else: begin()
  // computes and sends those of the first layer, and waits for nobody; go_on() does the layers after it;
  // finish(i) waits until the last layer's of the ranges 0 .. i are complete. Uses as many rounds for each
  // layer as there are ranges. `notice`: what this rank tells the others with its first activations;
  // any_stop() and next_micro_batches() say after finish(0) what was told. batch and ranges must outlive the
  // last finish().
  struct Notice {
    bool stop = false;                // this rank wishes to stop
    uint32_t next_micro_batches = 1;  // of the next step; rank 0's counts
  };
  void begin(const shard::Batch& batch, std::span<const SampleRange> ranges, comm::Tag tag,
             const Notice& notice);
  void go_on();
  void finish(size_t range);
  bool any_stop() const;
  uint32_t next_micro_batches() const;

  // The last layer's activations stay where they are, though not known here any more, until this is called
  // again: the next begin() writes elsewhere.
  void set_aside();

  // [batch, width]; valid until the next run() or begin().
  Matrix activations(size_t layer) const { return activations_[layer].matrix(); }
  ConstMatrix output_input() const { return activations_.back().matrix(); }
  // [width, padded batch] of the last hidden layer.
  ConstMatrix output_input_transposed() const { return transposed_.back().matrix(); }

 private:
  void compute(size_t layer, size_t range);
  void drop_out(size_t layer, SampleRange range);
  void send(size_t layer, size_t range);
  void collect(size_t layer, size_t range);
  comm::Tag tag_of(size_t layer, size_t range) const;

  shard::Network& network_;
  const Sharding& sharding_;
  comm::Group& group_;
  CodecChoice* const codecs_;  // may be null
  const float dropout_;
  const comm::Codec& exact_;
  std::vector<Buffer> activations_, transposed_;  // [hidden layers]
  Buffer activations_aside_, transposed_aside_;   // set_aside()

  // The pass under way.
  const shard::Batch* batch_ = nullptr;
  std::span<const SampleRange> ranges_;
  SampleRange whole_;  // of run()
  comm::Tag tag_;
  size_t finished_ = 0;  // ranges of the last layer
  Buffer notices_;       // [size, kNoticeNumbers]

  // Kept for their memory.
  std::vector<comm::OutBlock> mine_;
  std::vector<std::vector<comm::InBlock>> theirs_;  // [size]
};

}  // namespace modelet::agent
