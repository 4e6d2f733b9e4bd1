// Parameters: the rows of one modelet's weight matrix with their optimiser state, updated row by row
// ("lazily": a row that no gradient touches costs nothing). Each row has its own clock, the number of its
// updates. With optimizer.row_clocks, Adam's bias correction uses this clock (Kingma, Ba, ICLR 2015,
// algorithm 1, with t counted per row); otherwise it uses the step.
//
// Weights and state are stored as fp32 or as bf16 (half the memory); biases are fp32. A weight in bf16 is
// rounded stochastically at each update (Gupta et al., ICML 2015), since most updates are smaller than the
// distance between two neighbouring numbers. The random numbers follow from the seed, the row, its clock, and
// the place of the batch: each replica of a model draws for itself, so that their errors average out.
//
// Parameters returned by columns() share the memory of the parameters that they were taken from. Different
// threads may update different rows at the same time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/array/aligned.h"
#include "base/array/matrix.h"
#include "base/experiment/experiment.h"
#include "base/rng.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

// Adam's bias corrections 1 / (1 - beta^t) by the clock t of a row, in a table: a step needs them for
// thousands of rows. Immutable.
class AdamCorrections {
 public:
  AdamCorrections(float beta1, float beta2) : first_(table(beta1)), second_(table(beta2)) {}
  float first(uint64_t clock) const { return clock < first_.size() ? first_[clock] : 1.0f; }
  float second(uint64_t clock) const { return clock < second_.size() ? second_[clock] : 1.0f; }

 private:
  // Up to the clock at which the correction becomes 1 in single precision.
  static std::vector<float> table(float beta);

  std::vector<float> first_, second_;
};

// What an update needs to know about the optimiser, at one step. `corrections` are those for its betas.
struct UpdateRule {
  const Experiment::Optimizer& optimizer;
  const AdamCorrections& corrections;
  uint64_t step = 0;  // of the run, from 0
  float learning_rate = 0;
  float gradient_scale = 1;   // < 1 when the global gradient norm is clipped
  uint64_t first_sample = 0;  // place of the batch among those of all replicas (Batch::first)
};

class Parameters {
 public:
  struct Shape {
    size_t rows = 0, cols = 0;
    bool with_bias = false;   // every row has one bias value beside its weights
    size_t first_column = 0;  // which column of the layer's matrix the first one is
    // [rows] by which numbers random draws know the rows; empty: by their place. Must outlive the parameters.
    // A row that has none, the last one, has the number `beyond`.
    std::span<const uint32_t> numbers = {};
    uint64_t beyond = 0;
  };

  // Zero-initialised. Without an optimiser there is no state and no update(): for inference. `seed`: for
  // stochastic rounding.
  Parameters(const Shape& shape, Precision precision, std::optional<OptimizerKind> optimizer, uint64_t seed);

  // A view of columns [first, first + count), to read and set them. It cannot be updated, because a row has
  // one clock and is updated as a whole. Only without bias.
  Parameters columns(size_t first, size_t count) const;

  size_t rows() const { return shape_.rows; }
  size_t cols() const { return shape_.cols; }
  size_t first_column() const { return shape_.first_column; }
  std::span<const uint32_t> numbers() const { return shape_.numbers; }
  // The number by which random draws know row r, wherever it is stored.
  uint64_t number(size_t r) const {
    return shape_.numbers.empty() ? r : r < shape_.numbers.size() ? shape_.numbers[r] : shape_.beyond;
  }
  bool has_bias() const { return shape_.with_bias; }
  Precision precision() const { return memory_->values.index() == 0 ? Precision::kFp32 : Precision::kBf16; }

  // The weights [rows, cols], `stride` elements apart: calls use(const float*, stride) or use(const Bf16*,
  // stride).
  template <class Use>
  decltype(auto) with_weights(const Use& use) const {
    return std::visit(
        [&](const auto& values) -> decltype(auto) {
          return use(std::as_const(values).data() + first_, memory_->stride);
        },
        memory_->values);
  }
  // One row, in the type that it is known to have; a broken invariant otherwise.
  template <class T>
  const T* stored_row(size_t r) const {
    return std::get<AlignedVector<T>>(memory_->values).data() + r * memory_->stride + first_;
  }
  // The weights, for code that reads single rows.
  ConstRows weights() const;
  // The weights where they are known to be fp32; a broken invariant otherwise.
  Matrix floats();
  ConstMatrix floats() const;
  // x [cols] * row r, plus its bias.
  float logit(size_t r, const float* x) const;
  // out [rows.size()] = the same for several rows, which may lie anywhere.
  void logits(std::span<const uint32_t> rows, const float* x, float* out) const;
  // out [cols] += factor * row r.
  void add_row(size_t r, float factor, float* out) const;
  // Rounds to the nearest; with `rng`, stochastically.
  void set_row(size_t r, const float* values);
  void set_row(size_t r, const float* values, Rng rng);

  float bias(size_t r) const { return has_bias() ? memory_->states[r].bias[0] : 0.0f; }
  float& bias(size_t r) { return memory_->states[r].bias[0]; }
  // Number of updates of row r so far.
  uint32_t clock(size_t r) const { return has_bias() ? memory_->states[r].clock : memory_->clocks[r]; }
  uint32_t& clock(size_t r) { return has_bias() ? memory_->states[r].clock : memory_->clocks[r]; }
  // out [count] = biases of rows [first, first + count).
  void copy_biases(size_t first, size_t count, float* out) const;

  // One optimiser step of a row. gradient [cols] is scaled in place by the rule's gradient_scale. `ahead`:
  // the result of announce() for a row that is updated later.
  struct RowStep {
    Parameters* parameters = nullptr;
    size_t row = 0;
    float* gradient = nullptr;
    float bias_gradient = 0;
    const void* ahead = nullptr;
  };
  static constexpr size_t kRowsAtOnce = 16;
  // At most kRowsAtOnce different rows, of parameters that may differ only in their number of rows and their
  // seed.
  static void update(std::span<const RowStep> steps, const UpdateRule& rule);
  void update(size_t r, float* gradient, float bias_gradient, const UpdateRule& rule) {
    const RowStep step{this, r, gradient, bias_gradient};
    update(std::span(&step, 1), rule);
  }

  // For loops over rows (base/array/prefetch.h): requests the weights and the bias of row r from memory, to
  // be read.
  void prefetch_weights(size_t r) const;
  // For loops over rows to be updated (base/array/prefetch.h). prefetch() requests all of row r. announce()
  // requests only what the row has besides its vectors. Its result is RowStep::ahead of another row, whose
  // update then requests the vectors.
  void prefetch(size_t r) const;
  const void* announce(size_t r) const;
  size_t cache_lines_of_row() const;

  // The named arrays that make up the state, for checkpoints: weights, bias, optimiser state, clocks. An
  // array's rows lie `stride_bytes` apart.
  struct Array {
    const char* name;
    DType dtype;
    std::vector<uint64_t> shape;  // [rows] or [rows, cols]
    std::byte* first;
    size_t row_bytes, stride_bytes;

    std::vector<std::byte> packed() const;
    void unpack(std::span<const std::byte> bytes) const;  // as many as packed() has
    // Refers to this array's rows where they are.
    Tensor tensor(std::string as) const;
  };
  std::vector<Array> arrays();

  // Bytes of the columns of this view. What a row has besides its vectors counts where its first column is.
  size_t memory_bytes() const;

 private:
  // What a row with a bias has besides its vectors, in one place: a step reads and writes all of it.
  struct RowState {
    std::array<float, 3> bias{};  // and its optimiser's numbers
    uint32_t clock = 0;           // updates so far
  };

  void prefetch_beside(size_t r) const;
  template <class T>
  static void update_stored(std::span<const RowStep> steps, const UpdateRule& rule);

  // [rows, weights | first | second]: the optimiser's vectors of a row follow its weights, since an update
  // needs them together. first: any optimiser, second: Adam.
  struct Memory {
    size_t vector = 0, stride = 0;  // elements of one of a row's vectors, and of all
    std::variant<AlignedVector<float>, AlignedVector<Bf16>> values;
    AlignedVector<RowState> states;  // [rows], or empty: rows without bias
    AlignedVector<uint32_t> clocks;  // [rows], or empty: rows with bias; many share a cache line
  };

  Shape shape_;
  std::optional<OptimizerKind> optimizer_;
  uint64_t seed_;
  size_t first_ = 0;  // where the columns begin in a row's vectors
  std::shared_ptr<Memory> memory_;
};

}  // namespace modelet::shard
