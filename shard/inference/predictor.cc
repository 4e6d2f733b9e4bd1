#include "shard/inference/predictor.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/system/log.h"
#include "shard/data/batch/split.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/row_dots.h"
#include "shard/kernels/row_sums.h"
#include "shard/layers/scoring/classifiers.h"
#include "shard/modelet/state.h"

namespace modelet::shard {
namespace {

// The share of queries in which the tuned index must agree with dense scoring. It is higher than the 99 % of
// P@1 that are promised, because later queries differ from the known ones, and because the labels that are
// missed are rare ones, which tend to be right where they are the best.
constexpr double kRecallWanted = 0.9995;

constexpr size_t kRowsBetweenLooks = 1024;  // rows scored between two looks at the best

Sample sample_of(const Batch& batch, size_t s) {
  const size_t first = batch.offsets[s], count = batch.offsets[s + 1] - first;
  return {{batch.features.data() + first, count}, {batch.values.data() + first, count}, {}};
}

// Calls read(), which reads files of the checkpoint in `folder`.
template <class Read>
auto naming_the_intact(const std::filesystem::path& folder, const Read& read) {
  try {
    return read();
  } catch (const FormatError& error) {
    throw_with_intact(error, folder, "");
  }
}

Checkpoint open_model(const std::filesystem::path& path) {
  const std::filesystem::path newest = find_checkpoint(path);
  const std::filesystem::path model = naming_the_intact(newest, [&] { return find_model(path); });
  return naming_the_intact(model, [&] { return Checkpoint::open(model); });
}

}  // namespace

Predictor::Predictor(const std::filesystem::path& checkpoint, unsigned threads)
    : checkpoint_(open_model(checkpoint)),
      encoder_(naming_the_intact(checkpoint_.folder(), [this] { return checkpoint_.read_encoder(); })),
      pool_(threads),
      partition_(partition_model(index().experiment, index().shape)),
      network_(index().experiment, index().shape, partition_, false, pool_,
               naming_the_intact(checkpoint_.folder(), [this] { return stored_feature_rows(checkpoint_); })) {
  naming_the_intact(checkpoint_.folder(), [this] {
    for (const auto& modelet : network_.modelets()) restore_modelet(*modelet, checkpoint_);
  });
  network_.set_scoring();
  const Scoring& scoring = network_.scoring();
  constants_.resize(index().shape.labels);
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const ModeletSpec& spec = scoring.modelets()[m]->spec();
    scoring.constants({m, all_rows(spec.neurons())}, &constants_[spec.begin]);
  }
  if (scoring.terms().size() > 1) by_feature_.emplace(scoring);
  if (scoring.settings().classifiers > 0 && !has_fitted_classifiers(scoring))
    log_warning(
        "{}: was written before the model's linear classifiers were fitted, and is less accurate without them. They "
        "are fitted before evaluations (train.evaluate_every) and at the end: resume the run",
        folder().string());
}

uint64_t Predictor::bytes_to_load(const std::filesystem::path& path) {
  const CheckpointIndex index = open_model(path).index();
  uint64_t bytes = 0;
  for (const CheckpointEntry& entry : index.modelets) {
    const RowShape shape = row_shape(entry.spec);
    bytes += shape.rows * shape.cols * value_bytes(entry.spec.kind, index.experiment.model.precision);
  }
  return bytes;
}

Dataset Predictor::load_data(const std::filesystem::path& path, const PrepareProgress& progress) const {
  Dataset data = load_queries(path, index().experiment.data.normalize, encoder_, progress);
  const DataShape& shape = index().shape;
  if (data.features() != shape.features || data.labels() != shape.labels)
    throw UsageError(path.string() + " has " + std::to_string(data.features()) + " features and " +
                     std::to_string(data.labels()) + " labels, the model of " + folder().string() + " has " +
                     std::to_string(shape.features) + " and " + std::to_string(shape.labels));
  return data;
}

QueryEncoder Predictor::query_encoder() const {
  return {encoder_, index().shape, index().experiment.data.normalize, folder().string()};
}

void Predictor::prepare_sparse(const Dataset& data) {
  const size_t count = std::min(data.rows(), kTuningQueries);
  if (count < kFewestQueries)
    throw UsageError("sparse inference tunes itself on the queries and needs at least " +
                     std::to_string(kFewestQueries) + " samples, these are " + std::to_string(count) +
                     "; run it without --sparse");
  const size_t width = network_.experiment().model.hidden.back();
  std::vector<uint32_t> rows;  // spread evenly
  for (size_t q = 0; q < count; ++q) rows.push_back(static_cast<uint32_t>(q * data.rows() / count));
  Batch batch;
  batch.assign(data, rows, false);
  const AlignedVector<float> queries = tuning_queries(batch);
  const uint64_t digests[] = {fingerprint(), xxh3_of(std::as_bytes(std::span(queries)))};
  const uint64_t key = xxh3_of(std::as_bytes(std::span(digests)));
  const std::filesystem::path file = folder() / kSparsePlanFile;
  std::optional<SparsePlan> plan = read_sparse_plan(file, key, network_.shape().labels, width);
  if (!plan) {
    plan = plan_sparse({queries.data(), count, width, width}, batch);
    write_sparse_plan(file, key, *plan);
  }
  tuned_ = plan->tuned;
  sparse_ = std::make_unique<SparseIndex>(network_.scoring(), plan->order, tuned_->settings,
                                          network_.experiment().train.seed, pool_);
}

// The input of the output layer for the samples of a batch [B, d].
AlignedVector<float> Predictor::tuning_queries(const Batch& batch) const {
  const size_t width = network_.experiment().model.hidden.back();
  AlignedVector<float> hidden(batch.size() * width);
  Session session = this->session();
  for (size_t q = 0; q < batch.size(); ++q)
    std::copy_n(session.hidden(sample_of(batch, q)), width, &hidden[q * width]);
  return hidden;
}

SparsePlan Predictor::plan_sparse(ConstMatrix hidden, const Batch& batch) {
  const size_t count = hidden.rows, width = hidden.cols, columns = padded(count);
  AlignedVector<float> transposed(columns * width);
  for (size_t q = 0; q < count; ++q)
    for (size_t c = 0; c < width; ++c) transposed[c * columns + q] = hidden.row(q)[c];
  LabelRanker ranker(network_.scoring(), pool_);
  TopK best;
  ranker.rank_dense({transposed.data(), width, columns, columns}, count, 1, best, &batch);
  QuerySample queries{hidden, {}, {}};
  for (size_t q = 0; q < count; ++q) {
    if (best.labels(q)[0] == TopK::kNoLabel)
      throw FormatError(folder().string() + ": the model's scores are not numbers; it cannot be used");
    queries.best.push_back(network_.spread().neuron(best.labels(q)[0]));
    queries.scores.push_back(best.scores(q)[0]);
  }
  SparsePlan plan{{}, order_rows(network_.scoring(), queries, pool_)};
  plan.tuned = tune_sparse(network_.scoring(), plan.order, queries, network_.experiment().train.seed,
                           kRecallWanted, pool_);
  return plan;
}

void Predictor::predict_sparse(const Batch& batch, size_t k, TopK& best) {
  while (sessions_.size() < pool_.threads()) sessions_.push_back(session());
  best.reset(batch.size(), k);
  pool_.for_pieces(batch.size(), 8, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s) sessions_[pool_.thread_index()].sparse(sample_of(batch, s), s, best);
  });
}

const float* Predictor::Session::hidden(const Sample& sample) {
  const Network& network = predictor_->network_;
  std::span<const uint32_t> entry_rows = sample.features;
  std::span<const float> entry_values = sample.values;
  if (const FeatureRows& rows = network.features(); !rows.all()) {
    rows_.clear();
    values_.clear();
    for (size_t i = 0; i < sample.features.size(); ++i)
      if (const uint32_t row = rows.row(sample.features[i]); row != FeatureRows::kNone) {
        rows_.push_back(row);
        values_.push_back(sample.values[i]);
      }
    entry_rows = rows_;
    entry_values = values_;
  }
  size_t layer = 0;
  for (const uint32_t width : network.experiment().model.hidden) {
    AlignedVector<float>& out = activations_[layer % 2];
    const float* in = activations_[(layer + 1) % 2].data();
    out.resize(width);
    for (const auto& modelet : network.modelets()) {
      const ModeletSpec& spec = modelet->spec();
      if (spec.layer != layer) continue;
      const Parameters& p = modelet->parameters();
      float* sums = out.data() + spec.begin;
      if (layer == 0) {
        p.with_weights([&](const auto* weights, size_t stride) {
          kernels::weighted_row_sum(entry_rows.data(), entry_values.data(), entry_rows.size(), weights,
                                    stride, weights + (p.rows() - 1) * stride, sums, p.cols());
        });
      } else {
        kernels::row_dots(p.floats().data, p.floats().stride, p.rows(), in, p.cols(), sums);
        for (size_t r = 0; r < p.rows(); ++r) sums[r] += p.bias(r);
      }
    }
    kernels::relu(out.data(), width);
    ++layer;
  }
  return activations_[(layer + 1) % 2].data();
}

// What terms beside the network add to the logits [neurons]; null: there are none.
const float* Predictor::Session::direct(const Query& query) {
  if (!predictor_->by_feature_) return nullptr;
  direct_.assign(predictor_->network_.shape().labels, 0.0f);
  predictor_->by_feature_->add_to(query, direct_.data());
  return direct_.data();
}

const TopK& Predictor::Session::dense(const Sample& sample, size_t k) {
  const Query query{sample, hidden(sample)};
  const float* const direct = this->direct(query);
  const Scoring& scoring = predictor_->network_.scoring();
  best_.reset(1, k);
  scores_.resize(kRowsBetweenLooks);
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const Modelet& modelet = *scoring.modelets()[m];
    const Parameters& p = modelet.parameters();
    for (size_t begin = 0; begin < p.rows(); begin += kRowsBetweenLooks) {
      const size_t count = std::min(kRowsBetweenLooks, p.rows() - begin);
      p.with_weights([&](const auto* weights, size_t stride) {
        kernels::row_dots(weights + begin * stride, stride, count, query.hidden, p.cols(), scores_.data());
      });
      for (size_t i = 0; i < count; ++i) {
        const size_t neuron = modelet.spec().begin + begin + i;
        const float sum = scores_[i] + (direct != nullptr ? direct[neuron] : 0.0f);
        const float score = scoring.factor({m, begin + i}) * sum + predictor_->constants_[neuron];
        if (score < best_.thresholds()[0]) continue;
        best_.insert(0, score, scoring.spread().label(static_cast<uint32_t>(neuron)));
      }
    }
  }
  return best_;
}

const TopK& Predictor::Session::sparse(const Sample& sample, size_t k) {
  best_.reset(1, k);
  sparse(sample, 0, best_);
  return best_;
}

void Predictor::Session::sparse(const Sample& sample, size_t place, TopK& best) {
  MODELET_CHECK(predictor_->sparse_ != nullptr, "prepare_sparse() first");
  const Query query{sample, hidden(sample)};
  predictor_->sparse_->rank(query.hidden, direct(query), scratch_, place, best);
}

}  // namespace modelet::shard
