// Model: a trained model (shard/inference/model.h) for Python: its answers and weights as arrays of numpy. Samples
// are encoded and normalised as in training.
//
// Any thread may call it; calls that compute take turns at each batch, without the interpreter's lock. Who
// waits for the mutex does not have that lock, and who has the mutex does not wait for it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "python/native/samples.h"
#include "shard/inference/embeddings.h"
#include "shard/inference/model.h"
#include "shard/inference/nearest_samples.h"

namespace modelet::python {

template <class T>
using Table = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<2>>;
using Names = nanobind::typed<nanobind::list, nanobind::str>;
using Line = nanobind::ndarray<nanobind::numpy, float, nanobind::ndim<1>>;

class Model {
 public:
  // `path`: the folder of a run, of which the best checkpoint is taken, or of a checkpoint. `threads` 0: all
  // cores. Throws UsageError, FormatError.
  Model(const std::string& path, unsigned threads);

  std::string folder() const { return model_.folder().string(); }
  std::string experiment() const { return to_toml(model_.experiment()); }
  uint64_t step() const { return model_.step(); }
  uint64_t features() const { return model_.shape().features; }
  uint64_t labels() const { return model_.shape().labels; }
  size_t width() const { return model_.width(); }
  std::string reading() const;  // as TOML: the keys that say how text is read, with data.format
  Names columns() const;        // shard::Columns::names()
  bool takes_histories() const { return model_.query_encoder().columns().takes_histories(); }
  Names label_names() const;    // empty if labels have no names

  // Labels [rows, k] and scores [rows, k], best first; k is at most labels(). `among`: only these labels, at least k
  // different ones; nothing: all.
  nanobind::tuple best(const Samples& samples, size_t k, const std::optional<std::vector<uint32_t>>& among);
  // For each row the parts of the score of its label in `labels` [rows] (shard/inference/explanation.h): the score, the
  // rest, and the features, their values and shares.
  nanobind::list explain(const Samples& samples, const std::vector<uint32_t>& labels) const;
  // For each row at most `most` rows of the training data that have its label in `labels` [rows] and are most like it, and
  // their cosines (shard/inference/nearest_samples.h). UsageError unless the training data is there.
  nanobind::list examples(const Samples& samples, const std::vector<uint32_t>& labels, size_t most);
  Table<float> scores(const Samples& samples);  // [rows, labels]
  Table<float> hidden(const Samples& samples);  // [rows, width]

  // The samples of a file, which is text in the format of the training data or a prepared file: offsets
  // [rows + 1], ids and values of the features (normalised as in training); offsets [rows + 1] and ids of
  // the labels.
  nanobind::tuple read(const std::string& path) const;
  // Adds the records of a text to histories (shard::Model::add_events()): how many were new, and labels that are unknown.
  std::pair<uint64_t, uint64_t> add_events(const std::string& path) const;
  nanobind::bytes events() const;  // those that were added, as a text
  // The samples of questions (shard::QueryEncoder), as read() gives them. The rows have a field for each column.
  nanobind::tuple encode_texts(const std::vector<nanobind::bytes>& texts) const;
  nanobind::tuple encode_rows(const std::vector<std::vector<nanobind::bytes>>& rows) const;
  // For each column its place among `named`, or nothing (shard::Columns::places()).
  std::vector<std::optional<size_t>> places(const std::vector<nanobind::bytes>& named,
                                            const std::string& where) const;

  // The names of the terms of a score (shard/layers/scoring/terms.cc): the network, and those of pairs().
  Names terms() const;
  // The networks of the model: one or, of a model of towers, one for each task.
  size_t towers() const { return model_.towers().size(); }
  // [labels] the share of a tower in the score of a label that it has.
  nanobind::object shares() const;
  // For each layer of a tower its weights and biases. Weights are [features, width] in the first layer and [neurons,
  // inputs] in the others. The last layer's neurons are in the order of tower_labels(), and its weights and
  // biases are those with which labels are scored.
  nanobind::list layers(size_t tower) const;
  // The labels of a tower, ascending.
  nanobind::object tower_labels(size_t tower) const;
  // The features that have rows in the first layer, ascending.
  nanobind::object row_features() const;
  // What terms beside the network (shard/layers/scoring/terms.cc) add to scores for the features of a sample, as four
  // arrays: feature, label, the factor of the feature's value in a sample scaled to length one, and in the sample as
  // it is. The same feature and label may come twice. None if there is no direct path.
  nanobind::object pairs() const;

  // Between these two calls nothing is computed. They are for fork(): the child does not have the other threads, so
  // none of them may hold the mutex or be half-way through a batch.
  void pause();
  void go_on() { mutex_.unlock(); }

  // For models of running text (shard/inference/embeddings.h). The number of a word is that of its label;
  // `word` is less than labels(). nearest_words(): numbers and cosines.
  Names words();
  std::vector<std::pair<uint32_t, float>> nearest_words(uint32_t word, size_t k);

 private:
  // Calls use(first row, batch) for each batch.
  template <class Use>
  void for_batches(const Samples& samples, const Use& use);
  // Calls use(sample, label) for each row and its label.
  template <class Use>
  void for_questions(const Samples& samples, const std::vector<uint32_t>& labels, const Use& use) const;
  const shard::Embeddings& embeddings();

  shard::Model model_;
  // Made when they are first needed.
  std::unique_ptr<shard::Embeddings> embeddings_;
  std::unique_ptr<const shard::NearestSamples> nearest_samples_;
  std::mutex mutex_;                               // guards everything that is not const
};

}  // namespace modelet::python
