#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/kernels/elementwise.h"
#include "shard/layers/loss/loss.h"

namespace modelet::shard {
namespace {

class Softmax final : public LossFunction {
 public:
  void maximum(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) const override {
    kernels::column_max(logits, rows, stride, maximum, n);
  }
  void activate(float* logits, size_t rows, size_t stride, const float* maximum, float* sum,
                size_t n) const override {
    kernels::column_exp_sum(logits, rows, stride, maximum, sum, n);
  }
  float activate_one(float& logit, float maximum) const override { return logit = std::exp(logit - maximum); }
  bool normalised() const override { return true; }
  float initial_output_bias(double) const override { return 0; }

  void combine(const Batch& batch, std::span<const ConstMatrix> statistics,
               BatchLoss& result) const override {
    result.reset(batch, statistics.size());
    const float share = 1.0f / static_cast<float>(batch.size());
    for (size_t s = 0; s < batch.size(); ++s) {
      const uint32_t labels = batch.label_counts[s];
      if (labels == 0) continue;
      float maximum = -std::numeric_limits<float>::infinity();
      for (const ConstMatrix& local : statistics) maximum = std::max(maximum, local.row(kReference)[s]);
      double sum = 0, target = 0;
      for (const ConstMatrix& local : statistics) {
        sum += double{local.row(kSum)[s]} * std::exp(local.row(kReference)[s] - maximum);
        target += local.row(kTarget)[s];
      }
      const float mass = 1.0f / static_cast<float>(labels);
      result.loss += maximum + std::log(sum) - target * mass;
      result.target_factor[s] = share * mass;
      for (size_t r = 0; r < statistics.size(); ++r)
        result.factors[r][s] =
            share * static_cast<float>(std::exp(statistics[r].row(kReference)[s] - maximum) / sum);
    }
    result.loss *= share;
  }
};

}  // namespace

std::unique_ptr<LossFunction> make_softmax_loss() { return std::make_unique<Softmax>(); }

}  // namespace modelet::shard
