#include "shard/inference/model.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/system/file.h"
#include "shard/data/batch/split.h"
#include "shard/data/encode/encoder.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;

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

uint64_t weight_bytes(const Checkpoint& checkpoint) {
  const CheckpointIndex& index = checkpoint.index();
  uint64_t bytes = 0;
  for (const CheckpointEntry& entry : index.modelets) {
    const RowShape shape = row_shape(entry.spec);
    bytes += shape.rows * shape.cols * value_bytes(entry.spec.kind, index.experiment.model.precision);
  }
  for (uint32_t task = 0; task < index.towers.size(); ++task)
    bytes += weight_bytes(checkpoint.open_tower(task));
  return bytes;
}

}  // namespace

Sample sample_of(const Batch& batch, size_t s) {
  const size_t first = batch.offsets[s], count = batch.offsets[s + 1] - first;
  return {{batch.features.data() + first, count}, {batch.values.data() + first, count}, {}};
}

uint64_t Model::bytes_to_load(const fs::path& path) { return weight_bytes(open_model(path)); }

Model::Model(const fs::path& checkpoint, unsigned threads, const fs::path& labels)
    : checkpoint_(open_model(checkpoint)),
      encoder_(naming_the_intact(folder(), [this] { return checkpoint_.read_encoder(); })),
      query_encoder_(encoder_, shape(), experiment().data.normalize, folder().string()),
      names_(read_names(labels)),
      pool_(threads) {
  naming_the_intact(folder(), [this] { load_towers(); });
  read_events();
}

fs::path Model::events_file() const {
  const fs::path run = run_of(folder());
  return (run.empty() ? folder() : run) / kEventsFile;
}

void Model::read_events() const {
  const fs::path file = events_file();
  if (!query_encoder_.has_histories() || !is_within(file.parent_path(), file)) return;
  try {
    query_encoder_.add_events(LineReader(file));
  } catch (const UsageError& error) {
    throw UsageError(file.string() + ": its events do not suit the model (" + error.what() + "): correct or remove it");
  }
}

NewEvents Model::add_events(LineReader text) const {
  const std::lock_guard lock(adding_);
  return query_encoder_.add_events(std::move(text), [this](const std::string& lines) { keep_events(lines); });
}

void Model::keep_events(const std::string& lines) const {
  const fs::path file = events_file();
  // What was forgotten need not be kept. Seldom, so that the cost of writing everything is shared by many additions.
  constexpr uint64_t kFewBytes = uint64_t{1} << 20;
  std::error_code failure;
  const std::uintmax_t bytes = fs::file_size(file, failure);
  if (!failure && bytes > kFewBytes) {
    const std::string kept = query_encoder_.events();
    if (bytes > 2 * kept.size()) {
      AtomicFile all(file);
      all.write(kept);
      all.commit();
    }
  }
  AppendedFile(file).write(lines);
}

void Model::load_towers() {
  if (shape().all_labels > 0)
    throw UsageError(folder().string() +
                     ": is a tower of a model, which answers only together with the others: give "
                     "the checkpoint that it is a part of");
  if (index().towers.empty()) {
    towers_.push_back(std::make_unique<Tower>(checkpoint_, spread_of(shape()), pool_));
    return;
  }
  const LabelDivision division = checkpoint_.read_division();
  if (!division.disjoint())
    for (const uint32_t towers : division.multiplicities()) shares_.push_back(1 / static_cast<float>(towers));
  for (uint32_t task = 0; task < index().towers.size(); ++task) {
    Checkpoint tower = checkpoint_.open_tower(task);
    LabelSpread spread = division.spread(task);
    if (tower.index().shape.labels != spread.neurons())
      throw FormatError(tower.folder().string() + ": does not have the labels that " + LabelDivision::kFile +
                        " gives it");
    towers_.push_back(std::make_unique<Tower>(std::move(tower), std::move(spread), pool_));
  }
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
    if (!run.empty() && is_within(run, copy)) return {load_label_names(copy, shape().labels, true)};
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

const LabelNumbers& Model::label_numbers() const {
  const std::lock_guard lock(mutex_);
  if (label_numbers_ == nullptr)
    label_numbers_ = std::make_unique<LabelNumbers>(names_.names, shape().labels);
  return *label_numbers_;
}

LabelSet Model::read_label_set(const fs::path& file) const {
  const LabelNumbers& numbers = label_numbers();
  std::vector<uint32_t> chosen;
  LineReader lines(file);
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty()) continue;
    try {
      chosen.push_back(numbers.parse(line));
    } catch (const UsageError& error) {
      lines.fail(error.what());
    }
  }
  if (chosen.empty()) throw UsageError(file.string() + ": has no label; write the name of one a line");
  return {shape().labels, chosen};
}

std::vector<ScoredLabel> Model::predict(const Sample& sample, size_t k, SearchMode mode,
                                        const LabelSet* among) const {
  std::unique_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      session = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (session == nullptr) session.reset(new Session(*this));
  const TopK& best = mode == SearchMode::kSparse && among == nullptr
                         ? session->sparse(sample, depth(k))
                         : session->dense(sample, depth(k), among);
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
  for (size_t i = 0; i < std::min(k, best.k()) && labels[i] != TopK::kNoLabel && scores[i] > kRemoved / 2; ++i)
    found.push_back({.label = labels[i],
                     .score = scores[i],
                     .name = names_.names.empty() ? std::string_view() : names_.names[labels[i]]});
  if (!calibration_) return found;
  std::vector<LogOdds> odds(found.size());
  uncalibrated(experiment().model.loss, scores, odds);
  for (size_t i = 0; i < odds.size(); ++i) found[i].probability = probability(*calibration_, odds[i]);
  return found;
}

void Model::predict(const Batch& batch, size_t k, TopK& best, SearchMode mode, const LabelSet* among) {
  if (mode == SearchMode::kSparse && among == nullptr) return predict_sparse(batch, k, best);
  if (towers_.size() == 1) return towers_.front()->rank(batch, k, best, among);
  best.reset(batch.size(), k);
  if (shares_.empty()) {
    for (const auto& tower : towers_) {
      tower->rank(batch, k, of_tower_, among);
      best.merge(of_tower_);
    }
    return;
  }
  rank_means(batch, k, best, among);
}

// Of labels in several towers.
void Model::rank_means(const Batch& batch, size_t k, TopK& best, const LabelSet* among) {
  const Matrix sums = scores_.resize(shape().labels, padded(batch.size()));
  std::fill_n(sums.data, sums.rows * sums.cols, 0.0f);
  for (const auto& tower : towers_) tower->add_scores(batch, sums, among);
  rankers_.resize(pool_.threads());
  for (RowRanker& ranker : rankers_) ranker.reset(batch.size(), k);
  pool_.for_pieces(sums.rows, kScoredTogether, [&](size_t begin, size_t end) {
    for (size_t label = begin; label < end; ++label) {
      if (among != nullptr && !among->contains(static_cast<uint32_t>(label))) continue;
      kernels::scale(shares_[label], sums.row(label), sums.cols);
      rankers_[pool_.thread_index()].insert(sums.row(label), static_cast<uint32_t>(label));
    }
  });
  for (const RowRanker& ranker : rankers_) best.merge(ranker.best());
}

void Model::predict(const Dataset& data, std::span<const uint32_t> rows, size_t k, SearchMode mode,
                    const OnBatch& on_batch, const LabelSet* among) {
  Batch batch;
  TopK best;
  for (size_t first = 0; first < rows.size(); first += kBatch) {
    batch.assign(data, rows.subspan(first, std::min(kBatch, rows.size() - first)), false);
    predict(batch, k, best, mode, among);
    on_batch(batch, best);
  }
}

void Model::predict(SampleReader& stream, uint64_t limit, size_t k, SearchMode mode, const OnBatch& on_batch,
                    const LabelSet* among) {
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
    predict(batch, k, best, mode, among);
    on_batch(batch, best);
  }
  if (failure) std::rethrow_exception(failure);
}

void Model::score(const Batch& batch, float* scores) {
  const size_t labels = shape().labels;
  std::fill_n(scores, batch.size() * labels, 0.0f);
  for (const auto& tower : towers_) tower->score(batch, scores);
  if (shares_.empty()) return;
  for (size_t s = 0; s < batch.size(); ++s)
    std::transform(shares_.begin(), shares_.end(), scores + s * labels, scores + s * labels,
                   std::multiplies<>());
}

size_t Model::width() const {
  size_t width = 0;
  for (const auto& tower : towers_) width += tower->network().experiment().model.hidden.back();
  return width;
}

ConstMatrix Model::embed(const Batch& batch) {
  if (towers_.size() == 1) return towers_.front()->embed(batch);
  const Matrix all = embedded_.resize(batch.size(), width());
  size_t first = 0;
  for (const auto& tower : towers_) {
    const ConstMatrix own = tower->embed(batch);
    for (size_t s = 0; s < own.rows; ++s) std::copy_n(own.row(s), own.cols, all.row(s) + first);
    first += own.cols;
  }
  return all;
}

std::vector<uint32_t> Model::label_counts() const {
  std::vector<uint32_t> counts(shape().labels);
  for (const auto& tower : towers_) {
    const std::vector<uint32_t> own = tower->network().label_counts();  // zero for labels of others
    if (own.empty()) return {};
    std::ranges::transform(counts, own, counts.begin(),
                           [](uint32_t a, uint32_t b) { return std::max(a, b); });
  }
  return counts;
}

void Model::prepare_sparse(const Dataset& data) {
  if (!shares_.empty())
    throw UsageError(
        "a sparse index knows the labels of one network, and scores of this model are means of several "
        "(model.divisions, model.tower_common): run it without --sparse");
  const size_t count = std::min(data.rows(), kTuningQueries);
  if (count < kFewestQueries)
    throw UsageError("sparse inference tunes itself on the queries and needs at least " +
                     std::to_string(kFewestQueries) + " samples, these are " + std::to_string(count) +
                     "; run it without --sparse");
  std::vector<uint32_t> rows;  // spread evenly
  for (size_t q = 0; q < count; ++q) rows.push_back(static_cast<uint32_t>(q * data.rows() / count));
  Batch batch;
  batch.assign(data, rows, false);
  for (const auto& tower : towers_) tower->prepare_sparse(batch);
}

size_t Model::sparse_bytes() const {
  size_t bytes = 0;
  for (const auto& tower : towers_) bytes += tower->sparse_index().memory_bytes();
  return bytes;
}

void Model::predict_sparse(const Batch& batch, size_t k, TopK& best) {
  while (sessions_.size() < pool_.threads()) sessions_.push_back(session());
  best.reset(batch.size(), k);
  pool_.for_pieces(batch.size(), 8, [&](size_t begin, size_t end) {
    for (size_t s = begin; s < end; ++s) sessions_[pool_.thread_index()].sparse(sample_of(batch, s), s, best);
  });
}

Model::Session::Session(const Model& model) : model_(&model) {
  for (const auto& tower : model.towers()) towers_.emplace_back(*tower);
}

void Model::Session::dense(const Sample& sample, TopK& best, const LabelSet* among) {
  const auto may_be = [among](uint32_t label) { return among == nullptr || among->contains(label); };
  if (model_->shares_.empty()) {
    for (Tower::Session& tower : towers_)
      tower.score(sample, [&](uint32_t label, float score) {
        if (may_be(label)) best.insert(0, score, label);
      });
    return;
  }
  sums_.assign(model_->shape().labels, 0.0f);
  for (Tower::Session& tower : towers_)
    tower.score(sample, [&](uint32_t label, float score) { sums_[label] += score; });
  for (uint32_t label = 0; label < sums_.size(); ++label)
    if (may_be(label)) best.insert(0, model_->shares_[label] * sums_[label], label);
}

const TopK& Model::Session::dense(const Sample& sample, size_t k, const LabelSet* among) {
  best_.reset(1, k);
  dense(sample, best_, among);
  return best_;
}

const TopK& Model::Session::sparse(const Sample& sample, size_t k) {
  best_.reset(1, k);
  sparse(sample, 0, best_);
  return best_;
}

void Model::Session::sparse(const Sample& sample, size_t place, TopK& best) {
  for (Tower::Session& tower : towers_) tower.sparse(sample, place, best);
}

}  // namespace modelet::shard
