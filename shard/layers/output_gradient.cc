#include "shard/layers/output_gradient.h"

#include "shard/kernels/elementwise.h"
#include "shard/layers/activation.h"

namespace modelet::shard {

OutputGradient::OutputGradient(bool normalised, float dropout, ThreadPool& pool)
    : normalised_(normalised), dropout_(dropout), pool_(pool), factors_(pool), terms_(pool) {}

void OutputGradient::combine(const BatchLoss& loss, std::span<const OutputColumns> columns,
                             ConstMatrix activations, Matrix gradient) {
  constexpr size_t kSamples = 16;  // of a parallel piece
  const size_t ranks = loss.factors.size(), terms = (normalised_ ? 2 : 1) * ranks;
  factors_.reserve(terms);
  terms_.reserve(terms);
  pool_.for_pieces(activations.rows, kSamples, [&](size_t begin, size_t end) {
    float* const factors = factors_.mine();
    const float** const rows = terms_.mine();
    for (size_t s = begin; s < end; ++s)
      for (const auto& [range, partials] : columns) {
        size_t term = 0;
        const auto add = [&](float factor, ConstMatrix partial) {
          factors[term] = factor;
          rows[term++] = partial.row(s);
        };
        for (size_t rank = 0; rank < ranks; ++rank) {
          add(loss.factors[rank][s], partials[rank].positive);
          if (normalised_) add(-loss.target_factor[s], partials[rank].negative);
        }
        float* const g = gradient.row(s) + range.first;
        kernels::linear_combination(factors, rows, terms, g, range.count);
        backward_activation(activations.row(s) + range.first, dropout_, g, range.count);
      }
  });
}

}  // namespace modelet::shard
