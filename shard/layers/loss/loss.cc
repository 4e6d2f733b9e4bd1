#include "shard/layers/loss/loss.h"

#include "base/array/padding.h"

namespace modelet::shard {

void BatchLoss::reset(const Batch& batch, size_t ranks) {
  const size_t columns = padded(batch.size());
  loss = 0;
  factors.resize(ranks);
  for (AlignedVector<float>& factor : factors) factor.assign(columns, 0.0f);
  target_factor.assign(columns, 0.0f);
}

// Each is defined in the file of its loss.
std::unique_ptr<LossFunction> make_softmax_loss();
std::unique_ptr<LossFunction> make_sigmoid_loss();

namespace {

using MakeLoss = std::unique_ptr<LossFunction> (*)();
constexpr ByChoice<Loss, MakeLoss> kLosses({
    {Loss::kSoftmax, make_softmax_loss},
    {Loss::kSigmoid, make_sigmoid_loss},
});

}  // namespace

std::unique_ptr<LossFunction> make_loss(Loss kind) { return kLosses[kind](); }

}  // namespace modelet::shard
