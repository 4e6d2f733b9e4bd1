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
  // `data` and `pool` must outlive it. `rows` of the data take part. Each of share.count replicas trains on
  // train.batch samples a step; this is the feed of one of them.
  BatchFeed(const Dataset& data, std::vector<uint32_t> rows, const Experiment::Train& train, ThreadPool& pool,
            BatchShare share = {});

  size_t steps_per_epoch() const { return order_.steps_per_epoch(); }
  size_t samples(uint64_t step) const { return order_.size(step); }  // of all replicas together

  // The batch of a step, valid until the next call. If the next call will be for the step after it, `steps`
  // (of the whole run) is larger than step + 1, and gathering of that batch begins.
  const Batch& at(uint64_t step, uint64_t steps);

  // Completes the batch after the one that at() returned, if it is being gathered: for a moment in which the
  // thread would only wait. With a pool of one thread it is gathered here, else in the next at().
  void finish_next() { prepare_.wait(); }
  // That batch, if one was begun; complete after finish_next(), and valid until the call after the next one.
  const Batch& next() const { return batches_[prepared_step_ % 2]; }

 private:
  void assign(uint64_t step);

  const Dataset& data_;
  BatchOrder order_;  // of all replicas together
  BatchShare share_;
  float input_dropout_;
  uint64_t seed_;
  Batch batches_[2];  // of this step and the next
  uint64_t prepared_step_ = ~uint64_t{0};
  BackgroundTask prepare_;  // last: it ends before what it works on
};

}  // namespace modelet::shard
