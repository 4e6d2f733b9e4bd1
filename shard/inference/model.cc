#include "shard/inference/model.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/system/log.h"
#include "shard/data/batch/split.h"
#include "shard/data/encode/encoder.h"
#include "shard/layers/scoring/classifiers.h"
#include "shard/modelet/state.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;

// The share of queries in which the tuned index must agree with dense scoring. It is higher than the 99 % of
// P@1 that are promised, because later queries differ from the known ones, and because the labels that are
// missed are rare ones, which tend to be right where they are the best.
constexpr double kRecallWanted = 0.9995;

Sample sample_of(const Batch& batch, size_t s) {
  const size_t first = batch.offsets[s], count = batch.offsets[s + 1] - first;
  return {{batch.features.data() + first, count}, {batch.values.data() + first, count}, {}};
}

// Calls read(), which reads files of the checkpoint in `folder`.
template <class Read>
auto naming_the_intact(const fs::path& folder, const Read& read) {
  try {
    return read();
  } catch (const FormatError& error) {
    throw_with_intact(error, folder, "");
  }
}

Checkpoint open_model(const fs::path& path) {
  const fs::path newest = find_checkpoint(path);
  const fs::path model = naming_the_intact(newest, [&] { return find_model(path); });
  return naming_the_intact(model, [&] { return Checkpoint::open(model); });
}

// Whether it is in `folder`, wherever ".." and symbolic links lead.
bool is_within(const fs::path& folder, const fs::path& file) {
  std::error_code failure;
  const fs::path real = fs::canonical(file, failure), parent = fs::canonical(folder, failure);
  return !failure && std::ranges::mismatch(parent, real).in1 == parent.end() &&
         fs::is_regular_file(real, failure);
}

}  // namespace

Model::Model(const fs::path& checkpoint, unsigned threads, const fs::path& labels)
    : checkpoint_(open_model(checkpoint)),
      encoder_(naming_the_intact(folder(), [this] { return checkpoint_.read_encoder(); })),
      query_encoder_(encoder_, shape(), experiment().data.normalize, folder().string()),
      names_(read_names(labels)),
      pool_(threads),
      network_(experiment(), shape(), partition_model(experiment(), shape()), false, pool_,
               naming_the_intact(folder(), [this] { return stored_feature_rows(checkpoint_); })),
      ranker_(network_.scoring(), pool_) {
  naming_the_intact(folder(), [this] {
    for (const auto& modelet : network_.modelets()) restore_modelet(*modelet, checkpoint_);
  });
  network_.set_scoring();
  const Scoring& scoring = network_.scoring();
  constants_.resize(shape().labels);
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

uint64_t Model::bytes_to_load(const fs::path& path) {
  const CheckpointIndex index = open_model(path).index();
  uint64_t bytes = 0;
  for (const CheckpointEntry& entry : index.modelets) {
    const RowShape shape = row_shape(entry.spec);
    bytes += shape.rows * shape.cols * value_bytes(entry.spec.kind, index.experiment.model.precision);
  }
  return bytes;
}

Dataset Model::load_data(const fs::path& path, const PrepareProgress& progress) const {
  Dataset data = load_queries(path, experiment().data.normalize, encoder_, progress);
  const DataShape& shape = index().shape;
  if (data.features() != shape.features || data.labels() != shape.labels)
    throw UsageError(path.string() + " has " + std::to_string(data.features()) + " features and " +
                     std::to_string(data.labels()) + " labels, the model of " + folder().string() + " has " +
                     std::to_string(shape.features) + " and " + std::to_string(shape.labels));
  return data;
}

// Of the model's own files; see the constructor.
Model::LabelNames Model::read_names(const fs::path& file) const {
  if (!file.empty()) return {load_label_names(file, shape().labels)};
  const std::string& of_run = experiment().data.labels;
  if (!of_run.empty()) {
    const fs::path run = run_of(folder()), copy = run / kLabelNamesFile;
    if (!run.empty() && is_within(run, copy)) return {load_label_names(copy, shape().labels)};
    if (is_within(folder(), of_run)) return {load_label_names(of_run, shape().labels)};
  }
  return {shard::label_names(encoder_, folder().string()), !of_run.empty()};
}

std::vector<ScoredLabel> Model::predict(const std::string& text, size_t k) const {
  const auto reader = query_encoder_.open_texts({text}, "the text");
  Sample sample;
  if (!reader->next(sample)) throw FormatError("the text: there is no sample in it");
  return predict(sample, k);
}

std::vector<ScoredLabel> Model::predict(const Sample& sample, size_t k, SearchMode mode) const {
  std::unique_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      session = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (session == nullptr) session.reset(new Session(*this));
  const TopK& best =
      mode == SearchMode::kSparse ? session->sparse(sample, depth(k)) : session->dense(sample, depth(k));
  std::vector<ScoredLabel> found = interpret(best, 0, k);
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(session));
  return found;
}

size_t Model::depth(size_t k) const {
  return std::min<size_t>(shape().labels, calibration_ ? std::max(k, kNormalisedOver) : k);
}

std::vector<ScoredLabel> Model::interpret(const TopK& best, size_t sample, size_t k) const {
  const auto labels = best.labels(sample);
  const auto scores = best.scores(sample);
  std::vector<ScoredLabel> found;
  for (size_t i = 0; i < std::min(k, best.k()) && labels[i] != TopK::kNoLabel; ++i)
    found.push_back({.label = labels[i],
                     .score = scores[i],
                     .name = names_.names.empty() ? std::string_view() : names_.names[labels[i]]});
  if (!calibration_) return found;
  std::vector<LogOdds> odds(found.size());
  uncalibrated(experiment().model.loss, scores, odds);
  for (size_t i = 0; i < odds.size(); ++i) found[i].probability = probability(*calibration_, odds[i]);
  return found;
}

void Model::predict(const Batch& batch, size_t k, TopK& best, SearchMode mode) {
  if (mode == SearchMode::kSparse) return predict_sparse(batch, k, best);
  forward(network_, batch, pass_);
  ranker_.rank_dense(pass_.output_input_transposed(), batch.size(), k, best, &batch);
}

void Model::predict(const Dataset& data, std::span<const uint32_t> rows, size_t k, SearchMode mode,
                    const OnBatch& on_batch) {
  Batch batch;
  TopK best;
  for (size_t first = 0; first < rows.size(); first += kBatch) {
    batch.assign(data, rows.subspan(first, std::min(kBatch, rows.size() - first)), false);
    predict(batch, k, best, mode);
    on_batch(batch, best);
  }
}

void Model::predict(SampleReader& stream, uint64_t limit, size_t k, SearchMode mode,
                    const OnBatch& on_batch) {
  Batch batch;
  TopK best;
  std::exception_ptr failure;
  const auto fill = [&](uint64_t most) {
    batch.clear();
    try {
      Sample sample;
      while (batch.size() < most && (batch.size() == 0 || stream.ready()) && stream.next(sample))
        batch.add(sample);
    } catch (const Error&) {
      failure = std::current_exception();
    }
    return batch.size() > 0;
  };
  const auto most = [&](uint64_t done) {
    return limit == 0 ? uint64_t{kBatch} : std::min(uint64_t{kBatch}, limit - done);
  };
  for (uint64_t done = 0; !failure && fill(most(done)); done += batch.size()) {
    predict(batch, k, best, mode);
    on_batch(batch, best);
  }
  if (failure) std::rethrow_exception(failure);
}

void Model::score(const Batch& batch, float* scores) {
  forward(network_, batch, pass_);
  ranker_.score_dense(pass_.output_input_transposed(), batch.size(), scores, &batch);
}

ConstMatrix Model::embed(const Batch& batch) {
  forward(network_, batch, pass_);
  return pass_.output_input();
}

void Model::prepare_sparse(const Dataset& data) {
  const size_t count = std::min(data.rows(), kTuningQueries);
  if (count < kFewestQueries)
    throw UsageError("sparse inference tunes itself on the queries and needs at least " +
                     std::to_string(kFewestQueries) + " samples, these are " + std::to_string(count) +
                     "; run it without --sparse");
  std::vector<uint32_t> rows;  // spread evenly
  for (size_t q = 0; q < count; ++q) rows.push_back(static_cast<uint32_t>(q * data.rows() / count));
  Batch batch;
  batch.assign(data, rows, false);
  const ConstMatrix queries = embed(batch);
  const uint64_t digests[] = {fingerprint(),
                              xxh3_of(std::as_bytes(std::span(queries.data, count * queries.cols)))};
  const uint64_t key = xxh3_of(std::as_bytes(std::span(digests)));
  const fs::path file = folder() / kSparsePlanFile;
  std::optional<SparsePlan> plan = read_sparse_plan(file, key, shape().labels, queries.cols);
  if (!plan) {
    plan = plan_sparse(batch);
    write_sparse_plan(file, key, *plan);
  }
  tuned_ = plan->tuned;
  sparse_ = std::make_unique<SparseIndex>(network_.scoring(), plan->order, tuned_->settings,
                                          network_.experiment().train.seed, pool_);
}

// Of queries that have just been embedded.
SparsePlan Model::plan_sparse(const Batch& batch) {
  TopK best;
  ranker_.rank_dense(pass_.output_input_transposed(), batch.size(), 1, best, &batch);
  QuerySample queries{pass_.output_input(), {}, {}};
  for (size_t q = 0; q < batch.size(); ++q) {
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

void Model::predict_sparse(const Batch& batch, size_t k, TopK& best) {
  while (sessions_.size() < pool_.threads()) sessions_.push_back(session());
  best.reset(batch.size(), k);
  pool_.for_pieces(batch.size(), 8, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s) sessions_[pool_.thread_index()].sparse(sample_of(batch, s), s, best);
  });
}

// What terms beside the network add to the logits [neurons]; null: there are none.
const float* Model::Session::direct(const Query& query) {
  if (!model_->by_feature_) return nullptr;
  logits_.assign(model_->network_.shape().labels, 0.0f);
  model_->by_feature_->add_to(query, logits_.data());
  return logits_.data();
}

const TopK& Model::Session::dense(const Sample& sample, size_t k) {
  const Query query{sample, forward_.run(model_->network_, sample)};
  const Scoring& scoring = model_->network_.scoring();
  logits_.assign(scoring.spread().labels(), 0.0f);
  if (model_->by_feature_) model_->by_feature_->add_to(query, logits_.data());
  scoring.terms().front()->add_logits(query, logits_.data());
  best_.reset(1, k);
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const ModeletSpec& spec = scoring.modelets()[m]->spec();
    for (size_t row = 0; row < spec.neurons(); ++row) {
      const size_t neuron = spec.begin + row;
      const float score = scoring.factor({m, row}) * logits_[neuron] + model_->constants_[neuron];
      if (score >= best_.thresholds()[0])
        best_.insert(0, score, scoring.spread().label(static_cast<uint32_t>(neuron)));
    }
  }
  return best_;
}

const TopK& Model::Session::sparse(const Sample& sample, size_t k) {
  best_.reset(1, k);
  sparse(sample, 0, best_);
  return best_;
}

void Model::Session::sparse(const Sample& sample, size_t place, TopK& best) {
  MODELET_CHECK(model_->sparse_ != nullptr, "prepare_sparse() first");
  const Query query{sample, forward_.run(model_->network_, sample)};
  model_->sparse_->rank(query.hidden, direct(query), scratch_, place, best);
}

}  // namespace modelet::shard
