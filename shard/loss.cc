#include "shard/loss.h"

#include "base/padding.h"

namespace modelet::shard {

void BatchLoss::reset(const Batch& batch, size_t ranks) {
  const size_t columns = padded(batch.size());
  loss = 0;
  factors.resize(ranks);
  for (AlignedVector<float>& factor : factors) factor.assign(columns, 0.0f);
  target_factor.assign(columns, 0.0f);
}

std::unique_ptr<LossFunction> make_softmax_loss();  // loss_softmax.cc
std::unique_ptr<LossFunction> make_sigmoid_loss();  // loss_sigmoid.cc

std::unique_ptr<LossFunction> make_loss(Loss kind) {
  return kind == Loss::kSoftmax ? make_softmax_loss() : make_sigmoid_loss();
}

}  // namespace modelet::shard
