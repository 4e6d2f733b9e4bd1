#include "shard/layers/output/output_products.h"

#include "base/array/padding.h"
#include "base/array/prefetch.h"
#include "base/array/scratch.h"
#include "base/error.h"
#include "base/parallel/thread_scratch.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"

namespace modelet::shard {
namespace {

constexpr size_t kGatherPiece = 64;  // rows that one thread gathers at a time; even

// Calls use(active, weight row) for all active neurons, in pieces on all threads, and adds their biases.
template <class T, class Use>
void for_each_row(std::span<Modelet* const> modelets, std::span<const ActiveNeuron> neurons, size_t width,
                  std::span<float> biases, ThreadPool& pool, const Use& use) {
  const auto parameters = [&](size_t a) -> const Parameters& {
    return modelets[neurons[a].modelet]->parameters();
  };
  const size_t ahead = rows_ahead(cache_lines(width * sizeof(T)) + 1);
  pool.for_pieces(neurons.size(), kGatherPiece, [&](size_t begin, size_t end) {
    for_each_fetched(
        begin, end, ahead, [&](size_t a) { parameters(a).prefetch_weights(neurons[a].row); },
        [&](size_t a) {
          const Parameters& p = parameters(a);
          biases[a] += p.bias(neurons[a].row);
          use(a, p.template stored_row<T>(neurons[a].row));
        });
  });
}

// For weights in fp32, and for weights in bf16 where products of floats are faster: gathering makes floats of
// them.
class FloatProducts final : public OutputProducts {
 public:
  FloatProducts(Precision precision, ThreadPool& pool) : precision_(precision), pool_(pool) {}

  std::span<const ActiveRange> gather(std::span<Modelet* const> modelets,
                                      std::span<const ActiveNeuron> neurons, bool in_order, size_t,
                                      size_t width, std::span<float> biases) override {
    width_ = width;
    runs_.clear();
    weights_.clear();
    if (in_order && precision_ == Precision::kFp32) {
      read_in_place(modelets, biases);
    } else if (!neurons.empty()) {
      copy_rows(modelets, neurons, biases);
    }
    return runs_;
  }

  void take_hidden(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange) override {
    hidden_ = hidden;
    hidden_transposed_ = hidden_transposed;
  }

  void logits(size_t first, size_t count, SampleRange range, const float* biases, float* out) const override {
    kernels::gemm({.m = count,
                   .n = range.columns(),
                   .k = width_,
                   .a = weights_of(first),
                   .a_row = stride_,
                   .a_col = 1,
                   .b = hidden_transposed_.data + range.begin,
                   .b_row = hidden_transposed_.stride,
                   .c = out,
                   .c_row = hidden_transposed_.cols,
                   .row_start = biases});
  }

  void keep_activations(size_t, size_t, SampleRange, const float*) override {}

  void positive(const float* activations, size_t begin, size_t end, float* out) const override {
    const size_t columns = hidden_transposed_.cols;
    if (runs_.empty()) std::fill_n(out, (end - begin) * width_, 0.0f);
    for (size_t r = 0; r < runs_.size(); ++r)
      kernels::gemm({.m = end - begin,
                     .n = width_,
                     .k = runs_[r].count,
                     .a = activations + runs_[r].first * columns + begin,
                     .a_row = 1,
                     .a_col = columns,
                     .b = weights_[r],
                     .b_row = stride_,
                     .c = out,
                     .c_row = width_,
                     .accumulate = r > 0});
  }

  void add_row(size_t active, float* out) const override { kernels::add(weights_of(active), out, width_); }

  void gradient_rows(size_t count, const float* gradient, float* out) override {
    kernels::gemm({.m = count,
                   .n = width_,
                   .k = hidden_.rows,
                   .a = gradient,
                   .a_row = hidden_transposed_.cols,
                   .a_col = 1,
                   .b = hidden_.data,
                   .b_row = hidden_.stride,
                   .c = out,
                   .c_row = width_});
  }

 private:
  void read_in_place(std::span<Modelet* const> modelets, std::span<float> biases) {
    size_t first = 0;
    for (const Modelet* modelet : modelets) {
      const ConstMatrix weights = std::as_const(*modelet).parameters().floats();
      runs_.push_back({first, weights.rows});
      weights_.push_back(weights.data);
      stride_ = weights.stride;
      for (size_t r = 0; r < weights.rows; ++r) biases[first + r] += modelet->parameters().bias(r);
      first += weights.rows;
    }
  }

  // Gathers the active rows once, so that every product of the step reads contiguous memory.
  void copy_rows(std::span<Modelet* const> modelets, std::span<const ActiveNeuron> neurons,
                 std::span<float> biases) {
    float* const gathered = gathered_.reserve(neurons.size() * width_).data();
    if (precision_ == Precision::kFp32) {
      for_each_row<float>(modelets, neurons, width_, biases, pool_, [&](size_t a, const float* row) {
        std::copy_n(row, width_, gathered + a * width_);
      });
    } else {
      for_each_row<Bf16>(modelets, neurons, width_, biases, pool_, [&](size_t a, const Bf16* row) {
        kernels::widen(row, gathered + a * width_, width_);
      });
    }
    runs_.push_back({0, neurons.size()});
    weights_.push_back(gathered);
    stride_ = width_;
  }

  const float* weights_of(size_t active) const {
    for (size_t r = 0; r < runs_.size(); ++r)
      if (active < runs_[r].first + runs_[r].count) return weights_[r] + (active - runs_[r].first) * stride_;
    MODELET_CHECK(false, "active neuron out of range");
    return nullptr;
  }

  Precision precision_;  // of the weights
  ThreadPool& pool_;
  ConstMatrix hidden_, hidden_transposed_;
  std::vector<ActiveRange> runs_;
  std::vector<const float*> weights_;  // of a range's first neuron
  size_t width_ = 0;
  size_t stride_ = 0;        // between the weights of neighbours
  Scratch<float> gathered_;  // [active, d]
};

// For weights in bf16 where the machine multiplies them as pairs along k. k differs from product to product:
// the hidden width in the logits, neurons in the positive part, samples in the gradient. Weights and hidden
// activations are therefore kept in two layouts.
class PairProducts final : public OutputProducts {
 public:
  explicit PairProducts(ThreadPool& pool) : pool_(pool), gradients_(pool) {}

  std::span<const ActiveRange> gather(std::span<Modelet* const> modelets,
                                      std::span<const ActiveNeuron> neurons, bool, size_t samples,
                                      size_t width, std::span<float> biases) override {
    samples_ = samples;
    columns_ = padded(samples);
    width_ = width;
    run_ = {0, neurons.size()};
    gradients_.reserve(kLargestPiece * columns_);
    hidden_pairs_.reserve((samples + 1) / 2 * 2 * width);
    transposed_pairs_.reserve(width * columns_);
    activations_.reserve((neurons.size() + 1) / 2 * 2 * columns_);
    copy_rows(modelets, neurons, biases);
    return {&run_, neurons.empty() ? size_t{0} : size_t{1}};
  }

  void take_hidden(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) override {
    pack(hidden.row_range(range.begin, range.size()), hidden_pairs_.data() + range.begin * width_, width_);
    pack(hidden_transposed.columns(range.begin, range.columns()), transposed_pairs_.data() + 2 * range.begin,
         columns_);
  }

  void logits(size_t first, size_t count, SampleRange range, const float* biases, float* out) const override {
    kernels::gemm({.m = count,
                   .n = range.columns(),
                   .k = width_ / 2,
                   .a = rows_.data() + first * width_,
                   .a_row = width_ / 2,
                   .a_col = 1,
                   .b = transposed_pairs_.data() + 2 * range.begin,
                   .b_row = columns_,
                   .c = out,
                   .c_row = columns_,
                   .row_start = biases});
  }

  void keep_activations(size_t first, size_t count, SampleRange range, const float* activations) override {
    for (size_t a = 0; a < count; a += 2)
      kernels::pack_pairs(activations + a * columns_,
                          a + 1 < count ? activations + (a + 1) * columns_ : nullptr,
                          activations_.data() + (first + a) * columns_ + 2 * range.begin, range.columns());
  }

  void positive(const float*, size_t begin, size_t end, float* out) const override {
    kernels::gemm({.m = end - begin,
                   .n = width_,
                   .k = (run_.count + 1) / 2,
                   .a = activations_.data() + 2 * begin,
                   .a_row = 1,
                   .a_col = columns_,
                   .b = row_pairs_.data(),
                   .b_row = width_,
                   .c = out,
                   .c_row = width_});
  }

  void add_row(size_t active, float* out) const override {
    kernels::axpy(1, rows_.data() + active * width_, out, width_);
  }

  void gradient_rows(size_t count, const float* gradient, float* out) override {
    Bf16* narrow = gradients_.mine();
    kernels::narrow(gradient, narrow, count * columns_);
    kernels::gemm({.m = count,
                   .n = width_,
                   .k = (samples_ + 1) / 2,
                   .a = narrow,
                   .a_row = columns_ / 2,
                   .a_col = 1,
                   .b = hidden_pairs_.data(),
                   .b_row = width_,
                   .c = out,
                   .c_row = width_});
  }

 private:
  // Pairs along the rows of a matrix: [rows / 2, stride, 2].
  void pack(ConstMatrix matrix, Bf16* out, size_t stride) {
    pool_.for_pieces(matrix.rows, kGatherPiece, [&](size_t begin, size_t end) {
      kernels::pack_pairs(matrix.row_range(begin, end - begin), out + begin * stride, stride);
    });
  }

  void copy_rows(std::span<Modelet* const> modelets, std::span<const ActiveNeuron> neurons,
                 std::span<float> biases) {
    Bf16* rows = rows_.reserve(neurons.size() * width_).data();
    Bf16* pairs = row_pairs_.reserve((neurons.size() + 1) / 2 * 2 * width_).data();
    for_each_row<Bf16>(modelets, neurons, width_, biases, pool_, [&](size_t a, const Bf16* row) {
      Bf16* copy = std::copy_n(row, width_, rows + a * width_) - width_;
      if (a % 2 == 1) kernels::interleave(copy - width_, copy, pairs + (a - 1) * width_, width_);
      if (a % 2 == 0 && a + 1 == neurons.size())
        kernels::interleave(copy, nullptr, pairs + a * width_, width_);
    });
  }

  ThreadPool& pool_;
  size_t samples_ = 0, columns_ = 0, width_ = 0;  // B, padded B, d
  ActiveRange run_{};
  Scratch<Bf16> hidden_pairs_;      // [B / 2, d, 2]
  Scratch<Bf16> transposed_pairs_;  // [d / 2, padded B, 2]
  Scratch<Bf16> rows_;              // [active, d]
  Scratch<Bf16> row_pairs_;         // [active / 2, d, 2]
  Scratch<Bf16> activations_;       // [active / 2, padded B, 2]
  ThreadScratch<Bf16> gradients_;   // [kLargestPiece, padded B] per thread
};

}  // namespace

std::unique_ptr<OutputProducts> make_output_products(Precision precision, ThreadPool& pool, bool pairs) {
  if (precision == Precision::kBf16 && pairs) return std::make_unique<PairProducts>(pool);
  return std::make_unique<FloatProducts>(precision, pool);
}

}  // namespace modelet::shard
