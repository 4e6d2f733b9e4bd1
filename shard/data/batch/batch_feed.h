// BatchFeed: the batches of a run, step after step. While a step works on its batch, the next one, which
// needs no weights, is gathered on the pool's threads.
//
// Used by the training thread. Keeps its memory: after warm-up it allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"
#include "shard/data/batch/batch.h"
#include "shard/data/store/dataset.h"

namespace modelet::shard {

class BatchFeed {
 public:
  // `data` and `pool` must outlive it. `rows` of the data take part: those of all replicas or, with
  // share.own_rows, of this one. Each of share.count replicas trains on train.batch samples a step; this is the
  // feed of one of them. `unlabelled_weight`: of the loss of samples without labels.
  BatchFeed(const Dataset& data, std::vector<uint32_t> rows, const Experiment::Train& train, ThreadPool& pool,
            BatchShare share = {}, float unlabelled_weight = 1);

  size_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  // Of all replicas together; if each has rows of its own, as if all batches were full: how many rows a replica has is
  // its own affair.
  size_t samples(uint64_t step) const { return share_.own_rows ? batch_ * share_.count : order_.size(step); }

  // The batch of a step, valid until the next call. Begins to gather the batch of the next step as well, if
  // the run, which has `steps` steps, has one.
  const Batch& at(uint64_t step, uint64_t steps);

  // Waits until the batch of the next step is gathered. Call it when the training thread would only wait
  // anyway: with a pool of one thread, the batch is gathered in this call, or else in the next at().
  void finish_next() { prepare_.wait(); }
  // The batch of the next step, if at() began to gather it. It is complete after finish_next(), and valid
  // until at() has been called twice.
  const Batch& next() const { return batches_[prepared_step_ % 2]; }

 private:
  void assign(uint64_t step);

  const Dataset& data_;
  BatchOrder order_;  // of all replicas together, or of this one's rows
  BatchShare share_;
  size_t batch_;  // samples of this replica
  float input_dropout_, unlabelled_weight_;
  uint64_t seed_;
  Batch batches_[2];  // of this step and the next
  uint64_t prepared_step_ = ~uint64_t{0};
  BackgroundTask prepare_;  // last: it ends before what it works on
};

}  // namespace modelet::shard
