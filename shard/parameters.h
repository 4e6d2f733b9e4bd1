// Parameters: the rows of one modelet's weight matrix with their optimiser state, updated row by row
// ("lazily": a row that no gradient touches costs nothing). Each row has its own clock, the number of its
// updates, which Adam's bias correction uses (Kingma, Ba, ICLR 2015, algorithm 1, with t counted per row).
//
// Owns its memory. Different rows may be updated by different threads at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/experiment.h"
#include "base/matrix.h"

namespace modelet::shard {

// Adam's bias corrections 1 - beta^t by the clock t of a row, tabulated: a step needs them for thousands of
// rows. Immutable.
class AdamCorrections {
 public:
  AdamCorrections(float beta1, float beta2) : first_(table(beta1)), second_(table(beta2)) {}
  float first(uint32_t clock) const { return clock < first_.size() ? first_[clock] : 1.0f; }
  float second(uint32_t clock) const { return clock < second_.size() ? second_[clock] : 1.0f; }

 private:
  // Up to the clock from which the correction is 1 in single precision.
  static std::vector<float> table(float beta);

  std::vector<float> first_, second_;
};

// What an update needs to know about the optimiser, at one step. `corrections` are those of its betas.
struct UpdateRule {
  const Experiment::Optimizer& optimizer;
  const AdamCorrections& corrections;
  float learning_rate = 0;
  float gradient_scale = 1;  // < 1 when the global gradient norm is clipped
};

class Parameters {
 public:
  // Zero-initialised. `with_bias`: every row has one bias value beside its weights. Without an optimiser
  // there is no state, and no update(): for inference.
  Parameters(std::optional<OptimizerKind> optimizer, size_t rows, size_t cols, bool with_bias);

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  bool has_bias() const { return !bias_.empty(); }

  ConstMatrix weights() const { return {weights_.data(), rows_, cols_, cols_}; }
  Matrix weights() { return {weights_.data(), rows_, cols_, cols_}; }
  const float* row(size_t r) const { return weights_.data() + r * cols_; }
  float bias(size_t r) const { return bias_[r]; }
  std::span<float> biases() { return bias_; }
  std::span<const float> biases() const { return bias_; }

  // One optimiser step of row r. gradient [cols] is scaled in place by the rule's gradient_scale.
  void update(size_t r, float* gradient, float bias_gradient, const UpdateRule& rule);

  // Asks the memory for row r, which will be updated soon: active rows lie far apart, and waiting for them is
  // most of an update's time.
  void prefetch(size_t r) const;

  // The named arrays that make up the state, for checkpoints: weights, bias, optimiser state, clocks.
  struct Array {
    const char* name;
    std::vector<uint64_t> shape;
    std::span<std::byte> bytes;
    bool is_float;  // else uint32
  };
  std::vector<Array> arrays();

  size_t memory_bytes() const;

 private:
  void update_values(const float* gradient, float* weights, float* first, float* second, size_t n,
                     uint32_t clock, const UpdateRule& rule) const;

  std::optional<OptimizerKind> optimizer_;
  size_t rows_, cols_;
  AlignedVector<float> weights_, first_, second_;       // [rows, cols]; second only for Adam
  std::vector<float> bias_, bias_first_, bias_second_;  // [rows] or empty
  std::vector<uint32_t> clock_;                         // [rows]
};

}  // namespace modelet::shard
