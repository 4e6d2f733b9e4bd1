#include "shard/layers/activation.h"

#include <algorithm>

#include "base/rng.h"
#include "shard/data/batch/dropout.h"

namespace modelet::shard {

void drop_out(Matrix activations, SampleRange range, size_t layer, std::span<const ColumnRange> modelets,
              const HiddenDropout& dropout, ThreadPool& pool) {
  if (dropout.rate == 0) return;
  constexpr size_t kSamples = 16;  // of a parallel piece
  // Looked up without a branch, which would often be predicted wrongly.
  const float factors[2] = {dropout_scale(dropout.rate), 0};
  pool.for_pieces(range.size(), kSamples, [&](size_t begin, size_t end) {
    for (size_t s = range.begin + begin; s < range.begin + end; ++s)
      for (const ColumnRange& c : modelets) {
        DropoutMask mask(dropout.rate, Rng(dropout.seed, {kStreamHiddenDropout, dropout.step, layer, c.first,
                                                          dropout.first_sample + s}));
        float* const values = activations.row(s) + c.first;
        for (size_t i = 0; i < c.count; ++i) values[i] *= factors[mask.drops_next() ? 1 : 0];
      }
  });
}

void backward_activation(const float* activations, float dropout, float* gradient, size_t n) {
  kernels::relu_backward(activations, gradient, n);
  if (dropout > 0) kernels::scale(dropout_scale(dropout), gradient, n);
}

void backward_activation(ConstMatrix activations, float dropout, ConstMatrix packed,
                         std::span<const ColumnRange> columns, Matrix gradient) {
  for (size_t s = 0; s < packed.rows; ++s) {
    const float* from = packed.row(s);
    for (const ColumnRange& c : columns) {
      float* const to = gradient.row(s) + c.first;
      std::copy_n(from, c.count, to);
      backward_activation(activations.row(s) + c.first, dropout, to, c.count);
      from += c.count;
    }
  }
}

}  // namespace modelet::shard
