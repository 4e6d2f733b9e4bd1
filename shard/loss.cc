#include "shard/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/kernels/kernels.h"

namespace modelet::shard {
namespace {

void prepare(const Batch& batch, size_t ranks, BatchLoss& result) {
  const size_t columns = kernels::padded(batch.size());
  result.loss = 0;
  result.factors.resize(ranks);
  for (AlignedVector<float>& factor : result.factors) factor.assign(columns, 0.0f);
  result.target_factor.assign(columns, 0.0f);
}

size_t label_count(const Batch& batch, size_t sample) {
  return batch.label_offsets[sample + 1] - batch.label_offsets[sample];
}

class Softmax final : public LossFunction {
 public:
  void maximum(const float* logits, size_t rows, size_t stride, float* maximum, size_t n) const override {
    kernels::column_max(logits, rows, stride, maximum, n);
  }
  void activate(float* logits, size_t rows, size_t stride, const float* maximum, float* sum, size_t n) const override {
    kernels::column_exp_sum(logits, rows, stride, maximum, sum, n);
  }
  float activate_one(float& logit, float maximum) const override { return logit = std::exp(logit - maximum); }
  bool normalised() const override { return true; }

  void combine(const Batch& batch, std::span<const ConstMatrix> statistics, BatchLoss& result) const override {
    prepare(batch, statistics.size(), result);
    const float share = 1.0f / static_cast<float>(batch.size());
    for (size_t s = 0; s < batch.size(); ++s) {
      const size_t labels = label_count(batch, s);
      if (labels == 0) continue;
      float maximum = -std::numeric_limits<float>::infinity();
      for (const ConstMatrix& local : statistics) maximum = std::max(maximum, local.row(kMaximum)[s]);
      double sum = 0, target = 0;
      for (const ConstMatrix& local : statistics) {
        sum += double{local.row(kSum)[s]} * std::exp(local.row(kMaximum)[s] - maximum);
        target += local.row(kTarget)[s];
      }
      const float mass = 1.0f / static_cast<float>(labels);
      result.loss += maximum + std::log(sum) - target * mass;
      result.target_factor[s] = share * mass;
      for (size_t r = 0; r < statistics.size(); ++r)
        result.factors[r][s] =
            share * static_cast<float>(std::exp(statistics[r].row(kMaximum)[s] - maximum) / sum);
    }
    result.loss *= share;
  }
};

class Sigmoid final : public LossFunction {
 public:
  void maximum(const float*, size_t, size_t, float* maximum, size_t n) const override {
    std::fill_n(maximum, n, 0.0f);
  }
  void activate(float* logits, size_t rows, size_t stride, const float*, float* sum, size_t n) const override {
    kernels::column_sigmoid(logits, rows, stride, sum, n);
  }
  float activate_one(float& logit, float) const override {
    const float e = std::exp(-std::abs(logit));
    const float sum = std::max(logit, 0.0f) + std::log1p(e);
    logit = (logit < 0 ? e : 1.0f) / (1 + e);
    return sum;
  }
  bool normalised() const override { return false; }

  void combine(const Batch& batch, std::span<const ConstMatrix> statistics, BatchLoss& result) const override {
    prepare(batch, statistics.size(), result);
    const float share = 1.0f / static_cast<float>(batch.size());
    for (size_t s = 0; s < batch.size(); ++s) {
      for (const ConstMatrix& local : statistics)
        result.loss += double{local.row(kSum)[s]} - local.row(kTarget)[s];
      result.target_factor[s] = share;
      for (AlignedVector<float>& factor : result.factors) factor[s] = share;
    }
    result.loss *= share;
  }
};

}  // namespace

std::unique_ptr<LossFunction> make_loss(Loss kind) {
  if (kind == Loss::kSoftmax) return std::make_unique<Softmax>();
  return std::make_unique<Sigmoid>();
}

}  // namespace modelet::shard
