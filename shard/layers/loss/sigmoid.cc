#include <algorithm>
#include <cmath>

#include "shard/kernels/elementwise.h"
#include "shard/layers/loss/loss.h"

namespace modelet::shard {
namespace {

class Sigmoid final : public LossFunction {
 public:
  void maximum(const float*, size_t, size_t, float* maximum, size_t n) const override {
    std::fill_n(maximum, n, 0.0f);
  }
  void activate(float* logits, size_t rows, size_t stride, const float*, float* sum,
                size_t n) const override {
    kernels::column_sigmoid(logits, rows, stride, sum, n);
  }
  float activate_one(float& logit, float) const override {
    const float e = std::exp(-std::abs(logit));
    const float sum = std::max(logit, 0.0f) + std::log1p(e);
    logit = (logit < 0 ? e : 1.0f) / (1 + e);
    return sum;
  }
  bool normalised() const override { return false; }

  // The bias with which neurons predict the frequency of a label. From zero, hundreds of steps would go into
  // learning that nearly all labels are absent (docs/decisions/0003-initial-output-bias.md).
  float initial_output_bias(double frequency) const override {
    return frequency > 0 && frequency < 1 ? static_cast<float>(std::log(frequency / (1 - frequency))) : 0;
  }

  void combine(const Batch& batch, std::span<const ConstMatrix> statistics,
               BatchLoss& result) const override {
    result.reset(batch, statistics.size());
    const float share = 1.0f / static_cast<float>(batch.size());
    for (size_t s = 0; s < batch.size(); ++s) {
      const float weight = batch.weight(s);
      for (const ConstMatrix& local : statistics)
        result.loss += weight * (double{local.row(kSum)[s]} - local.row(kTarget)[s]);
      result.target_factor[s] = weight * share;
      for (AlignedVector<float>& factor : result.factors) factor[s] = weight * share;
    }
    result.loss *= share;
  }
};

}  // namespace

std::unique_ptr<LossFunction> make_sigmoid_loss() { return std::make_unique<Sigmoid>(); }

}  // namespace modelet::shard
