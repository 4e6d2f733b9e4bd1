// One training step, model-sharded: the heart of Modelet (DESIGN section 3). Composes the arithmetic of
// shard/ with the collectives of comm/; with a group of one it is plain local training.
//
// All exchanges come before any update: a step that throws PeerError has changed no weight, state or table,
// and may be run again with the next `attempt`. The activations of the step after it may go out before its
// output layer is updated, which they do not depend on: they travel meanwhile, and a rank that is late with
// its update makes nobody wait. Used by one thread.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/sample_range.h"
#include "comm/group.h"
#include "node_agent/codec_choice.h"
#include "node_agent/micro_batches.h"
#include "node_agent/sharded_forward.h"
#include "node_agent/sharding.h"
#include "shard/data/batch.h"
#include "shard/loss.h"
#include "shard/network.h"
#include "shard/thread_scratch.h"

namespace modelet::agent {

struct StepResult {
  double loss = 0;            // mean over the batch, the same on all ranks
  bool stop = false;          // some rank wishes to stop after this step
  size_t active_neurons = 0;  // of the modelets held here
};

class TrainingStep {
 public:
  // All references must outlive it. `clock`: by which it measures its steps (micro_batches.h).
  TrainingStep(shard::Network& network, const Sharding& sharding, comm::Group& group,
               std::unique_ptr<const Clock> clock = std::make_unique<SteadyClock>());

  // What `exchange.codec = "auto"` needs to know of the links. Every rank calls it before its first step, if
  // any does; uses the rounds before those of run().
  void measure_exchange(uint64_t step) { codecs_.measure(group_, {.step = step}); }
  CodecChoice& codecs() { return codecs_; }
  // Into which the last step cut its batch.
  size_t micro_batches() const { return ranges_.size(); }

  // Work for the time in which a step has sent everything and waits for the others: called once in each step
  // of a group of several.
  void while_waiting(std::function<void()> work) { while_waiting_ = std::move(work); }

  // `stop`: this rank wishes to stop. `next`: the batch of the step after this one, complete once
  // while_waiting() was called, if all ranks run that step next and exchange nothing before; its first
  // activations are sent in this step. They say of `stop` what this step was told; an error in sending them
  // is thrown by the step that they are of.
  StepResult run(const shard::Batch& batch, uint64_t step, float learning_rate, bool stop,
                 uint16_t attempt = 0, const shard::Batch* next = nullptr);

  // The first round that a step does not use; other operations of the same step may start there.
  static constexpr uint16_t kRounds = 256;

 private:
  // What one rank sends for the output layer's exchange, and where it goes here.
  struct FromRank {
    Buffer statistics, positive, negative;  // [kStatistics, padded B], [B, own columns]
  };

  void begin(const shard::Batch& batch, uint64_t step, bool stop, uint16_t attempt);
  void begin_ahead(const shard::Batch& batch, uint64_t step, bool stop);
  void forward_output(const shard::Batch& batch, comm::Tag tag);
  void prepare_buffers(const shard::Batch& batch);
  // Which of the gradients that travel in one round a block is of.
  enum class Part : uint64_t { kPositive, kNegative, kSum };
  comm::OutBlock gradient_block(ConstMatrix values, size_t first_row, size_t first_column, Part part,
                                comm::Tag base, int to);
  void send_output(SampleRange range, comm::Tag base, comm::Tag tag);
  void collect_output(SampleRange range, comm::Tag tag);
  void combine_loss(const shard::Batch& batch);
  void combine_output_gradient();
  void backward_hidden(comm::Tag tag);
  void backward_activation(const float* activations, float* gradient, size_t n) const;
  float clip_scale(const shard::Batch& batch, comm::Tag tag);
  void update_hidden(const shard::Batch& batch, const shard::UpdateRule& rule);
  Matrix gradient(size_t layer) const { return gradients_[layer].matrix(); }

  shard::Network& network_;
  const Sharding& sharding_;
  comm::Group& group_;
  const std::unique_ptr<const Clock> clock_;
  const comm::Codec& exact_;
  std::unique_ptr<shard::LossFunction> loss_;
  const shard::AdamCorrections corrections_;
  CodecChoice codecs_;
  MicroBatches micro_batches_;
  ShardedForward forward_;
  std::function<void()> while_waiting_;
  double began_ = 0;                 // when the step did
  std::optional<uint64_t> ahead_;    // the step that was begun by the one before it
  std::exception_ptr ahead_failed_;  // that could not be begun then
  std::vector<SampleRange> ranges_;  // micro-batches of the step
  uint64_t first_sample_ = 0;        // its place among those of all replicas (Batch::first)
  shard::BatchLoss batch_loss_;
  std::vector<Buffer> gradients_;        // [hidden layers] by pre-activations; own columns are valid
  shard::ThreadScratch<float> factors_;  // of what the output gradient is summed up from: see there
  shard::ThreadScratch<const float*> terms_;
  Buffer partial_;                   // this rank's part of a hidden layer's input gradient
  std::vector<Buffer> parts_;        // [size] its columns, by owner
  Buffer sum_;                       // own columns, summed over ranks
  std::vector<FromRank> from_rank_;  // [size]
  // Lists of blocks, by rank, and of matrices: kept for their memory.
  std::vector<std::vector<comm::OutBlock>> to_;
  std::vector<comm::OutBlock> sums_;
  std::vector<std::vector<comm::InBlock>> from_;
  std::vector<ConstMatrix> matrices_;
};

}  // namespace modelet::agent
