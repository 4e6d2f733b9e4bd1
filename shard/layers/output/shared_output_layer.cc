// Output layer whose samples share active sets: all of a batch one set, or each group of sampling.group neighbours
// its own (sample_group.h). The gradient of a row that is active in several groups is the sum of theirs, so a step
// changes each row once.
#include <algorithm>
#include <deque>
#include <numeric>

#include "base/parallel/thread_scratch.h"
#include "shard/kernels/elementwise.h"
#include "shard/layers/output/output_layer.h"
#include "shard/layers/output/sample_group.h"
#include "shard/modelet/update_rows.h"

namespace modelet::shard {
namespace {

class SharedOutputLayer final : public OutputLayer {
 public:
  SharedOutputLayer(std::vector<Modelet*> modelets, const OutputOptions& options, const LabelSpread& spread,
                    ThreadPool& pool)
      : OutputLayer(std::move(modelets), options, spread, pool), by_logit_(pool), by_weight_(pool) {
    for (const Modelet* modelet : modelets_) samplers_.emplace_back(*modelet, options);
  }

  void select(const Batch& batch, ConstMatrix hidden, uint64_t step) override;
  void gather() override;
  void forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) override;
  double gradient_square_sum(ConstMatrix hidden, const float* factor, const float* target_factor) override;
  void update(ConstMatrix hidden, const float* factor, const float* target_factor,
              const UpdateRule& rule) override;
  size_t active_neurons() const override {
    size_t sum = 0;
    for (size_t g = 0; g < count_; ++g) sum += groups_[g].samples.neurons().size();
    return sum;
  }

 private:
  static constexpr uint32_t kNowhere = 0, kHere = 1, kFirstSum = 2;  // values of Group::sums

  struct Group {
    template <class... Arguments>
    explicit Group(Arguments&... arguments) : samples(arguments...) {}

    SampleGroup samples;
    // Active neurons, ascending, whose rows are active in no later group. This one completes their gradients.
    std::vector<uint32_t> complete;
    // [active] kHere: no other group has the row; from kFirstSum on: where earlier groups add up its gradient.
    std::vector<uint32_t> sums;
    std::vector<double> square_sums;  // [active] of gradient_square_sum
  };

  void select_in_modelets(SampleGroup& group, ConstMatrix hidden, uint64_t step);
  void find_common_rows();
  uint32_t& place(const ActiveNeuron& neuron) { return places_[neuron.modelet][neuron.row]; }
  template <class Use>
  void for_each_gradient_piece(const float* factor, const float* target_factor, const Use& use);

  std::vector<ActiveSetSampler> samplers_;
  BatchLabels labels_;
  Queries queries_;
  std::deque<Group> groups_;  // its elements stay where they are
  size_t count_ = 0;          // groups of this batch
  // [modelets][neurons] kNowhere except in find_common_rows(), which finds the values of Group::sums here.
  std::vector<std::vector<uint32_t>> places_;
  AlignedVector<float> weight_sums_, bias_sums_;  // [rows of several groups, d], [rows of several groups]

  ThreadScratch<float> by_logit_;   // gradients of a piece: [kLargestPiece, padded samples] per thread
  ThreadScratch<float> by_weight_;  // [kLargestPiece, d] per thread
};

void SharedOutputLayer::select(const Batch& batch, ConstMatrix hidden, uint64_t step) {
  resize(batch.size(), hidden.cols);
  const size_t most = samples_of_set(options_.sampling, static_cast<uint32_t>(batch.size()));
  count_ = 0;
  for (size_t begin = 0; begin < batch.size(); begin += most, ++count_) {
    if (count_ == groups_.size()) groups_.emplace_back(modelets_, options_, spread_, *loss_, pool_);
    SampleGroup& group = groups_[count_].samples;
    group.begin(batch, {begin, std::min(batch.size(), begin + most)});
    select_in_modelets(group, hidden.row_range(begin, group.samples().size()), step);
    for (uint32_t m = 0; m < modelets_.size(); ++m) group.add(m, samplers_[m].set());
  }
}

// Modelets choose independently: at the same time or, where each retrieves with all threads, one after the
// other.
void SharedOutputLayer::select_in_modelets(SampleGroup& group, ConstMatrix hidden, uint64_t step) {
  const Batch& batch = group.batch();
  labels_.assign(batch, spread_, modelets_);
  const auto select_in = [&](size_t m) {
    samplers_[m].select(*modelets_[m], labels_.of(m), batch.first, hidden, queries_, step, pool_);
  };
  if (options_.sampling.mode == SamplingMode::kLsh && !modelets_.empty()) {
    queries_.take(*modelets_[0]->retrieval(), hidden, pool_, samplers_[0].turn(step));
    for (size_t m = 0; m < modelets_.size(); ++m) select_in(m);
  } else {
    pool_.for_pieces(modelets_.size(), 1, [&](size_t m, size_t) { select_in(m); });
  }
}

void SharedOutputLayer::gather() {
  for (size_t g = 0; g < count_; ++g) groups_[g].samples.gather(width_);
  find_common_rows();
}

// Goes through the groups backwards, so the first group in which it meets a row is the one that completes it.
void SharedOutputLayer::find_common_rows() {
  uint32_t next = kFirstSum;
  if (count_ > 1 && places_.empty())
    for (const Modelet* modelet : modelets_) places_.emplace_back(modelet->spec().neurons(), kNowhere);
  for (size_t g = count_; g-- > 0;) {
    Group& group = groups_[g];
    const std::span<const ActiveNeuron> neurons = group.samples.neurons();
    group.sums.clear();
    group.complete.clear();
    for (uint32_t a = 0; a < neurons.size(); ++a) {
      group.sums.push_back(kHere);
      if (count_ == 1) {
        group.complete.push_back(a);
      } else if (uint32_t& found = place(neurons[a]); found == kNowhere) {
        found = kHere;
        group.complete.push_back(a);
      } else if (found == kHere) {
        found = next++;
      }
    }
  }
  for (size_t g = 0; count_ > 1 && g < count_; ++g)
    for (uint32_t a = 0; a < groups_[g].sums.size(); ++a)
      groups_[g].sums[a] = place(groups_[g].samples.neurons()[a]);
  for (size_t g = 0; count_ > 1 && g < count_; ++g)
    for (const uint32_t a : groups_[g].complete) place(groups_[g].samples.neurons()[a]) = kNowhere;
  bias_sums_.resize(next - kFirstSum);
  weight_sums_.resize(bias_sums_.size() * width_);
}

void SharedOutputLayer::forward(ConstMatrix hidden, ConstMatrix hidden_transposed, SampleRange range) {
  const Matrix statistics{statistics_.data(), statistics_rows(), columns_, columns_},
      positive{positive_.data(), samples_, width_, width_},
      negative{negative_.data(), samples_, width_, width_};
  for (size_t g = 0; g < count_; ++g) {
    SampleGroup& group = groups_[g].samples;
    const auto [first, last] = group.samples();
    const size_t begin = std::max(range.begin, first), end = std::min(range.end, last), count = last - first;
    if (begin >= end) continue;
    group.forward(hidden.row_range(first, count), hidden_transposed.columns(first, group.columns()),
                  {begin - first, end - first},
                  {statistics.columns(first, group.columns()), positive.row_range(first, count),
                   negative.row_range(first, count)});
  }
}

// Calls use(group, complete, count, gradient) for all pieces. complete[0, count) are the active neurons of the piece
// whose gradients are complete, and those of the group's later pieces follow; gradient(a) is that of neuron a.
template <class Use>
void SharedOutputLayer::for_each_gradient_piece(const float* factor, const float* target_factor,
                                                const Use& use) {
  by_logit_.reserve(OutputProducts::kLargestPiece * columns_);
  by_weight_.reserve(OutputProducts::kLargestPiece * width_);
  std::ranges::fill(weight_sums_, 0.0f);
  std::ranges::fill(bias_sums_, 0.0f);
  for (size_t g = 0; g < count_; ++g) {
    Group& group = groups_[g];
    const SampleGroup& samples = group.samples;
    const size_t first_sample = samples.samples().begin, columns = samples.columns();
    pool_.for_pieces(samples.pieces().size(), 1, [&](size_t i, size_t) {
      const ActiveRange& piece = samples.pieces()[i];
      float *const by_logit = by_logit_.mine(), *const by_weight = by_weight_.mine();
      samples.gradients(piece, factor + first_sample, target_factor + first_sample, by_logit, by_weight);
      const auto gradient = [&](size_t a) {
        return RowGradient{by_weight + (a - piece.first) * width_,
                           kernels::sum(by_logit + (a - piece.first) * columns, columns)};
      };
      const auto from = std::ranges::lower_bound(group.complete, piece.first);
      const std::span complete(from, group.complete.end());
      size_t count = 0;
      for (size_t a = piece.first; a < piece.first + piece.count; ++a) {
        const bool is_complete = count < complete.size() && complete[count] == a;
        if (is_complete) ++count;
        if (group.sums[a] == kHere) continue;
        const size_t sum = group.sums[a] - kFirstSum;
        const RowGradient added = gradient(a);
        kernels::add(added.weights, weight_sums_.data() + sum * width_, width_);
        bias_sums_[sum] += added.bias;
      }
      use(group, complete, count, [&](size_t a) {
        if (group.sums[a] == kHere) return gradient(a);
        const size_t sum = group.sums[a] - kFirstSum;
        return RowGradient{weight_sums_.data() + sum * width_, bias_sums_[sum]};
      });
    });
  }
}

double SharedOutputLayer::gradient_square_sum(ConstMatrix, const float* factor, const float* target_factor) {
  for (size_t g = 0; g < count_; ++g) {
    groups_[g].square_sums.resize(groups_[g].samples.neurons().size());
    std::ranges::fill(groups_[g].square_sums, 0.0);
  }
  for_each_gradient_piece(
      factor, target_factor,
      [&](Group& group, std::span<const uint32_t> complete, size_t count, const auto& gradient) {
        for (const uint32_t a : complete.first(count)) {
          const RowGradient row = gradient(a);
          group.square_sums[a] =
              double{kernels::sum_squares(row.weights, width_)} + double{row.bias} * row.bias;
        }
      });
  double sum = 0;  // added in order: the same whatever the threads
  for (size_t g = 0; g < count_; ++g)
    sum = std::accumulate(groups_[g].square_sums.begin(), groups_[g].square_sums.end(), sum);
  return sum;
}

void SharedOutputLayer::update(ConstMatrix, const float* factor, const float* target_factor,
                               const UpdateRule& rule) {
  for_each_gradient_piece(
      factor, target_factor,
      [&](const Group& group, std::span<const uint32_t> complete, size_t count, const auto& gradient) {
        const std::span<const ActiveNeuron> neurons = group.samples.neurons();
        const auto row = [&](size_t i) {
          const ActiveNeuron neuron = neurons[complete[i]];
          return ParameterRow{modelets_[neuron.modelet]->parameters(), neuron.row};
        };
        const auto gradients = [&](size_t first, std::span<RowGradient> rows) {
          for (size_t i = 0; i < rows.size(); ++i) rows[i] = gradient(complete[first + i]);
        };
        update_rows(count, complete.size(), rule, row, gradients);
        for (const uint32_t a : complete.first(count))
          if (Retrieval* retrieval = modelets_[neurons[a].modelet]->retrieval())
            retrieval->changed[neurons[a].row] = 1;
      });
}

}  // namespace

std::unique_ptr<OutputLayer> make_shared_output_layer(std::vector<Modelet*> modelets,
                                                      const OutputOptions& options, const LabelSpread& spread,
                                                      ThreadPool& pool) {
  return std::make_unique<SharedOutputLayer>(std::move(modelets), options, spread, pool);
}

}  // namespace modelet::shard
