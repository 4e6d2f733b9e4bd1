#include "shard/data/batch/batch_feed.h"

#include <utility>

namespace modelet::shard {

BatchFeed::BatchFeed(const Dataset& data, std::vector<uint32_t> rows, const Experiment::Train& train,
                     ThreadPool& pool, BatchShare share, float unlabelled_weight)
    : data_(data),
      order_(std::move(rows), size_t{train.batch} * (share.own_rows ? 1 : share.count), train.seed),
      share_(share),
      batch_(train.batch),
      input_dropout_(train.input_dropout),
      unlabelled_weight_(unlabelled_weight),
      seed_(train.seed),
      prepare_(pool) {}

const Batch& BatchFeed::at(uint64_t step, uint64_t steps) {
  prepare_.wait();
  if (prepared_step_ != step) assign(step);
  prepared_step_ = step + 1;
  if (prepared_step_ < steps) prepare_.run([this] { assign(prepared_step_); });
  return batches_[step % 2];
}

void BatchFeed::assign(uint64_t step) {
  const std::span<const uint32_t> rows = order_.rows(step);
  const FeatureDropout dropout{input_dropout_, seed_, step};
  Batch& batch = batches_[step % 2];
  if (share_.own_rows)
    batch.assign(data_, rows, true, dropout, batch_ * share_.index);
  else
    batch.assign(data_, share_of(rows, share_), true, dropout, first_place(rows.size(), share_));
  if (unlabelled_weight_ != 1) batch.weigh_unlabelled(unlabelled_weight_);
}

}  // namespace modelet::shard
