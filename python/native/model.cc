#include "python/native/model.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "node_agent/machine/capacity.h"
#include "shard/data/batch/split.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/pairs/own_items.h"
#include "shard/data/store/dataset.h"
#include "shard/inference/explanation.h"

namespace modelet::python {
namespace {

namespace nb = nanobind;

// A matrix that Python will own; not initialised.
template <class T>
struct Owned {
  T* data;
  size_t rows, cols;

  Owned(size_t r, size_t c) : data(new T[std::max<size_t>(r * c, 1)]), rows(r), cols(c) {}
  // The caller has the interpreter's lock.
  nb::capsule owner() const {
    return {data, [](void* p) noexcept { delete[] static_cast<T*>(p); }};
  }
  Table<T> table() const { return {data, {rows, cols}, owner()}; }
  nb::ndarray<nb::numpy, T, nb::ndim<1>> line() const { return {data, {rows * cols}, owner()}; }
};

// Collects samples one by one, and makes arrays of them.
class Rows {
 public:
  void add(const shard::Sample& sample) {
    ids_.insert(ids_.end(), sample.features.begin(), sample.features.end());
    values_.insert(values_.end(), sample.values.begin(), sample.values.end());
    label_ids_.insert(label_ids_.end(), sample.labels.begin(), sample.labels.end());
    offsets_.push_back(ids_.size());
    label_offsets_.push_back(label_ids_.size());
  }
  void add_all(shard::SampleReader& reader) {
    for (shard::Sample sample; reader.next(sample);) add(sample);
  }
  // Offsets, ids and values of the features; offsets and ids of the labels. May be called once. The caller
  // has the interpreter's lock.
  nb::tuple arrays() {
    return nb::make_tuple(to_numpy(std::move(offsets_)), to_numpy(std::move(ids_)),
                          to_numpy(std::move(values_)), to_numpy(std::move(label_offsets_)),
                          to_numpy(std::move(label_ids_)));
  }

 private:
  std::vector<uint64_t> offsets_ = {0}, label_offsets_ = {0};
  std::vector<uint32_t> ids_, label_ids_;
  std::vector<float> values_;
};

// Training data may have any bytes. Those that are not UTF-8 become surrogate escapes, as in os.fsdecode().
nb::object python_string(std::string_view text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

std::vector<std::string> strings(const std::vector<nb::bytes>& given) {
  std::vector<std::string> strings;
  for (const nb::bytes& each : given) strings.emplace_back(each.c_str(), each.size());
  return strings;
}

}  // namespace

Model::Model(const std::string& path, unsigned threads) : model_(agent::load_model(path, threads)) {}

std::string Model::reading() const { return to_toml(model_.query_encoder().encoding()); }

Names Model::columns() const {
  Names names;
  for (const std::string& name : model_.query_encoder().columns().names()) names.append(python_string(name));
  return names;
}

Names Model::label_names() const {
  Names names;
  for (const std::string& name : model_.label_names()) names.append(python_string(name));
  return names;
}

template <class Use>
void Model::for_batches(const Samples& samples, const Use& use) {
  const nb::gil_scoped_release unlocked;
  const shard::CsrSamples& rows = samples.samples();
  if (rows.features != features())
    throw UsageError("these samples have " + std::to_string(rows.features) + " features, the model of " +
                     folder() + " has " + std::to_string(features()));
  const shard::Dataset data = shard::Dataset::of(rows, model_.experiment().data.normalize);
  const std::vector<uint32_t> all = shard::all_rows(data.rows());
  shard::Batch batch;
  for (size_t first = 0; first < all.size(); first += shard::Model::kBatch) {
    {
      const std::lock_guard lock(mutex_);
      batch.assign(data, std::span(all).subspan(first, std::min(shard::Model::kBatch, all.size() - first)),
                   false);
      use(first, batch);
    }
    // Without the mutex: its next owner may have the interpreter's lock, and a signal's handler may use the
    // model.
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::tuple Model::best(const Samples& samples, size_t k, const std::optional<std::vector<uint32_t>>& among) {
  std::optional<shard::LabelSet> chosen;
  if (among) {
    for (const uint32_t label : *among) model_.label_numbers().checked(label);
    chosen.emplace(labels(), *among);
    if (chosen->size() < k)
      throw UsageError("k is " + std::to_string(k) + ", and there are only " +
                       std::to_string(chosen->size()) + " labels among which to choose");
  }
  if (k == 0 || k > labels())
    throw UsageError("k is " + std::to_string(k) + "; this model has " + std::to_string(labels()) +
                     " labels");
  const size_t rows = samples.samples().rows();
  const Owned<int64_t> found(rows, k);
  const auto found_table = found.table();
  const Owned<float> scores(rows, k);
  const auto scores_table = scores.table();
  shard::TopK best;
  for_batches(samples, [&](size_t first, const shard::Batch& batch) {
    model_.predict(batch, k, best, shard::SearchMode::kDense, chosen ? &*chosen : nullptr);
    for (size_t s = 0; s < batch.size(); ++s) {
      if (best.labels(s).back() == shard::TopK::kNoLabel)
        throw UsageError("row " + std::to_string(first + s) +
                         ": its values are so large that scores are no numbers");
      std::ranges::transform(best.labels(s), best.scores(s), found.data + (first + s) * k, [](uint32_t label, float score) {
        return score > shard::kRemoved / 2 ? int64_t{label} : -1;  // there are not so many labels any more
      });
      std::ranges::copy(best.scores(s), scores.data + (first + s) * k);
    }
  });
  return nb::make_tuple(found_table, scores_table);
}

template <class Use>
void Model::for_questions(const Samples& samples, const std::vector<uint32_t>& labels, const Use& use) const {
  const shard::CsrSamples& rows = samples.samples();
  if (rows.features != features() || labels.size() != rows.rows())
    throw UsageError("rows of " + std::to_string(features()) +
                     " features are explained, and a label for each");
  const shard::Dataset data = shard::Dataset::of(rows, model_.experiment().data.normalize);
  for (size_t row = 0; row < labels.size(); ++row) use(data.sample(row), model_.label_numbers().checked(labels[row]));
}

nb::list Model::examples(const Samples& samples, const std::vector<uint32_t>& labels, size_t most) {
  std::vector<std::vector<shard::NearestSamples::Found>> found;
  {
    const nb::gil_scoped_release unlocked;
    const std::lock_guard lock(mutex_);
    if (!nearest_samples_) {
      std::optional<shard::Dataset> data = shard::training_data_of(model_);
      if (!data)
        throw UsageError(model_.experiment().data.train +
                         ": there is no such file here, or it has other samples than those that the model was trained on");
      nearest_samples_ = std::make_unique<const shard::NearestSamples>(std::move(*data));
    }
    for_questions(samples, labels, [&](const shard::Sample& sample, uint32_t label) {
      found.push_back(nearest_samples_->find(sample, label, most));
    });
  }
  nb::list all;
  for (const auto& of_row : found) {
    std::vector<uint32_t> rows;
    std::vector<float> cosines;
    for (const auto& each : of_row) {
      rows.push_back(each.row);
      cosines.push_back(each.cosine);
    }
    all.append(nb::make_tuple(to_numpy(std::move(rows)), to_numpy(std::move(cosines))));
  }
  return all;
}

nb::list Model::explain(const Samples& samples, const std::vector<uint32_t>& labels) const {
  std::vector<shard::Explanation> found;
  {
    const nb::gil_scoped_release unlocked;
    for_questions(samples, labels,
                  [&](const shard::Sample& sample, uint32_t label) { found.push_back(shard::explain(model_, sample, label)); });
  }
  nb::list all;
  for (const shard::Explanation& each : found) {
    std::vector<uint32_t> ids;
    std::vector<float> values;
    std::vector<double> shares;
    for (const shard::FeatureShare& feature : each.features) {
      ids.push_back(feature.feature);
      values.push_back(feature.value);
      shares.push_back(feature.share);
    }
    all.append(nb::make_tuple(each.score, each.rest, to_numpy(std::move(ids)), to_numpy(std::move(values)),
                              to_numpy(std::move(shares))));
  }
  return all;
}

Table<float> Model::scores(const Samples& samples) {
  const Owned<float> scores(samples.samples().rows(), labels());
  auto table = scores.table();
  for_batches(samples, [&](size_t first, const shard::Batch& batch) {
    model_.score(batch, scores.data + first * scores.cols);
  });
  return table;
}

Table<float> Model::hidden(const Samples& samples) {
  const Owned<float> hidden(samples.samples().rows(), width());
  auto table = hidden.table();
  for_batches(samples, [&](size_t first, const shard::Batch& batch) {
    const ConstMatrix rows = model_.embed(batch);
    for (size_t s = 0; s < rows.rows; ++s)
      std::copy_n(rows.row(s), hidden.cols, hidden.data + (first + s) * hidden.cols);
  });
  return table;
}

nb::tuple Model::read(const std::string& path) const {
  Rows rows;
  {
    const nb::gil_scoped_release unlocked;
    if (shard::is_prepared(path)) {
      const shard::Dataset data = model_.load_data(path);
      for (size_t row = 0; row < data.rows(); ++row) rows.add(data.sample(row));
    } else {
      shard::refuse_other_kind(path, !model_.encoder().empty());
      rows.add_all(*model_.query_encoder().open(shard::LineReader(path)));
    }
  }
  return rows.arrays();
}

std::pair<uint64_t, uint64_t> Model::add_events(const std::string& path) const {
  const nb::gil_scoped_release unlocked;
  const shard::NewEvents events = model_.add_events(shard::LineReader(path));
  return {events.added, events.unknown_labels};
}

nb::bytes Model::events() const {
  const std::string events = model_.query_encoder().events();
  return nb::bytes(events.data(), events.size());
}

nb::tuple Model::encode_texts(const std::vector<nb::bytes>& texts) const {
  std::vector<std::string> copies = strings(texts);
  Rows rows;
  {
    const nb::gil_scoped_release unlocked;
    rows.add_all(*model_.query_encoder().open_texts(std::move(copies), "rows"));
  }
  return rows.arrays();
}

nb::tuple Model::encode_rows(const std::vector<std::vector<nb::bytes>>& given) const {
  std::vector<shard::Row> copies;
  for (const auto& row : given) copies.push_back(strings(row));
  Rows rows;
  {
    const nb::gil_scoped_release unlocked;
    rows.add_all(*model_.query_encoder().open_rows(std::move(copies), "rows"));
  }
  return rows.arrays();
}

std::vector<std::optional<size_t>> Model::places(const std::vector<nb::bytes>& named,
                                                 const std::string& where) const {
  std::vector<std::optional<size_t>> places;
  for (const size_t place : model_.query_encoder().columns().places(strings(named), where))
    places.push_back(place == shard::Columns::kAbsent ? std::nullopt : std::optional(place));
  return places;
}

Names Model::terms() const {
  Names names;
  for (const auto& term : model_.network().scoring().terms()) names.append(python_string(term->name()));
  return names;
}

namespace {

std::vector<uint32_t> labels_of(const shard::Network& network) {
  std::vector<uint32_t> labels;
  for (uint32_t label = 0; label < network.spread().labels(); ++label)
    if (network.spread().neuron(label) != shard::LabelSpread::kNoNeuron) labels.push_back(label);
  return labels;
}

}  // namespace

nb::object Model::tower_labels(size_t tower) const {
  return nb::cast(to_numpy(labels_of(model_.towers()[tower]->network())));
}

nb::object Model::shares() const {
  const std::span<const float> shares = model_.shares();
  return nb::cast(
      to_numpy(shares.empty() ? std::vector<float>(labels(), 1) : std::vector(shares.begin(), shares.end())));
}

nb::list Model::layers(size_t tower) const {
  const shard::Network& network = model_.towers()[tower]->network();
  std::vector<size_t> place_of(network.spread().neurons());  // [neurons] of the last layer
  const std::vector<uint32_t> own = labels_of(network);
  for (size_t place = 0; place < own.size(); ++place) place_of[network.spread().neuron(own[place])] = place;
  nb::list layers;
  const size_t last = network.experiment().model.hidden.size();
  for (size_t layer = 0; layer <= last; ++layer) {
    const size_t neurons = layer == last ? own.size() : network.experiment().model.hidden[layer];
    const size_t inputs =
        layer == 0 ? network.features().count() : network.experiment().model.hidden[layer - 1];
    const Owned<float> weights(layer == 0 ? inputs : neurons, layer == 0 ? neurons : inputs),
        biases(1, neurons);
    const std::vector<shard::Modelet*> modelets = network.modelets_of_layer(layer);
    for (size_t m = 0; m < modelets.size(); ++m) {
      const shard::Modelet* const modelet = modelets[m];
      const ModeletSpec& spec = modelet->spec();
      const shard::Parameters& p = modelet->parameters();
      const ConstRows rows = p.weights();
      std::vector<float> widened(p.cols());
      for (size_t r = 0; r < p.rows(); ++r) {
        const float* row = rows.row(r, widened.data());
        if (layer == 0) {  // a row for each feature that has one, then the biases
          std::copy_n(row, p.cols(), (r < inputs ? weights.data + r * neurons : biases.data) + spec.begin);
        } else {
          const auto neuron = static_cast<uint32_t>(spec.begin + r);
          const size_t place = layer == last ? place_of[neuron] : neuron;
          const float factor = layer == last ? network.scoring().factor({m, r}) : 1.0f;
          std::transform(row, row + inputs, weights.data + place * inputs,
                         [&](float weight) { return factor * weight; });
          biases.data[place] = layer == last ? network.scoring().constant({m, r}) : p.bias(r);
        }
      }
    }
    layers.append(nb::make_tuple(weights.table(), biases.line()));
  }
  return layers;
}

nb::object Model::row_features() const {
  const shard::FeatureRows& rows = model_.network().features();
  std::vector<uint32_t> features;
  for (size_t row = 0; row < rows.count(); ++row) features.push_back(rows.feature(row));
  return nb::cast(to_numpy(std::move(features)));
}

nb::object Model::pairs() const {
  if (!model_.experiment().model.centroids) return nb::none();
  std::vector<uint32_t> features, labels;
  std::vector<float> of_unit, of_value, values;
  for (const auto& tower : model_.towers()) {
    const shard::Scoring& scoring = tower->network().scoring();
    for (size_t m = 0; m < scoring.modelets().size(); ++m) {
      const shard::Modelet& modelet = *scoring.modelets()[m];
      const shard::Pairs& pairs = modelet.direct()->pairs;
      for (size_t r = 0; r < pairs.neurons(); ++r) {
        const uint32_t label = scoring.spread().label(static_cast<uint32_t>(modelet.spec().begin + r));
        const float share = model_.shares().empty() ? 1 : model_.shares()[label],
                    factor = share * scoring.factor({m, r});
        const auto add = [&](uint32_t feature, float unit, float value) {
          features.push_back(feature);
          labels.push_back(label);
          of_unit.push_back(factor * unit);
          of_value.push_back(factor * value);
        };
        values.resize(pairs.features(r).size());
        scoring.pair_values({m, r}, values);
        for (size_t i = 0; i < values.size(); ++i) add(pairs.features(r)[i], values[i], 0);
        if (scoring.settings().own_weight != 0 && label < this->features())
          add(label, 0, scoring.settings().own_weight);
      }
    }
  }
  return nb::make_tuple(to_numpy(std::move(features)), to_numpy(std::move(labels)),
                        to_numpy(std::move(of_unit)), to_numpy(std::move(of_value)));
}

void Model::pause() {
  const nb::gil_scoped_release unlocked;  // which a call that ends may wait for
  mutex_.lock();
}

const shard::Embeddings& Model::embeddings() {
  const nb::gil_scoped_release unlocked;
  const std::lock_guard lock(mutex_);
  if (!embeddings_) embeddings_ = std::make_unique<shard::Embeddings>(model_);
  return *embeddings_;
}

Names Model::words() {
  const shard::StringTable& table = embeddings().words();
  Names words;
  for (uint32_t id = 0; id < table.size(); ++id) words.append(python_string(table.at(id)));
  return words;
}

std::vector<std::pair<uint32_t, float>> Model::nearest_words(uint32_t word, size_t k) {
  std::vector<std::pair<uint32_t, float>> found;
  for (const auto& neighbour : embeddings().nearest(word, k))
    found.emplace_back(neighbour.word, neighbour.cosine);
  return found;
}

}  // namespace modelet::python
