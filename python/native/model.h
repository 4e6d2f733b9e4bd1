// Model: a trained model that answers Python: the best labels, all scores, activations of the last hidden
// layer, the words nearest to a word, and its weights. Samples are encoded and normalised as in training.
//
// Any thread may call it; calls that compute take turns, without the interpreter's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/collectives/group.h"
#include "node_agent/step/sharded_forward.h"
#include "python/native/samples.h"
#include "shard/inference/embeddings.h"
#include "shard/inference/evaluation.h"
#include "shard/inference/predictor.h"

namespace modelet::python {

template <class T>
using Table = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<2>>;
using Line = nanobind::ndarray<nanobind::numpy, float, nanobind::ndim<1>>;

class Model {
 public:
  // A run's folder (its best checkpoint) or a checkpoint's. `threads` 0: all cores. UsageError, FormatError.
  Model(const std::string& path, unsigned threads);

  std::string folder() const { return predictor_.folder().string(); }
  std::string experiment() const { return to_toml(predictor_.index().experiment); }
  uint64_t step() const { return predictor_.index().step; }
  uint64_t features() const { return predictor_.index().shape.features; }
  uint64_t labels() const { return predictor_.index().shape.labels; }
  size_t width() const { return predictor_.index().experiment.model.hidden.back(); }
  std::string reading() const;  // the keys that say how text is read, as TOML; data.format is among them
  std::vector<std::string> label_names() const;  // that the encoder of text knows; empty: it is not text

  // Labels [rows, k] and scores [rows, k], best first; k is at most labels().
  nanobind::tuple best(const Samples& samples, size_t k);
  Table<float> scores(const Samples& samples);  // [rows, labels]
  Table<float> hidden(const Samples& samples);  // [rows, width]

  // A text file like that of the training data, or a prepared one: offsets [rows + 1], ids, values (normalised as
  // in training), and the same of its labels: offsets, ids. encode: such a text itself.
  nanobind::tuple read(const std::string& path) const;
  nanobind::tuple encode(const std::string& text) const;

  // Of each layer the weights, [features, width] of the first and [neurons, inputs] of the others, and the
  // biases with which labels are scored. The last layer's neurons are in the order of labels.
  nanobind::list layers() const;
  // Of the direct path (shard/data/pairs/pairs.h): feature and label of each pair, what it adds to the score of
  // the label for a sample of length one, and for the sample as it is. None: there is no direct path.
  nanobind::object pairs() const;

  // Of a model of running text (shard/inference/embeddings.h).
  std::vector<std::string> words();
  std::vector<std::pair<std::string, float>> neighbours(const std::string& word, size_t k);

 private:
  // Calls use(first row, pass) for each batch.
  template <class Use>
  void for_batches(const Samples& samples, const Use& use);
  const shard::Embeddings& embeddings();

  shard::Predictor predictor_;
  const agent::Sharding sharding_;
  const std::unique_ptr<comm::Group> group_;
  agent::ShardedForward forward_;
  agent::ForwardPass pass_;
  shard::LabelRanker ranker_;
  shard::Batch batch_;
  std::unique_ptr<shard::Embeddings> embeddings_;  // once asked for
  std::mutex mutex_;                               // of everything that is not const
};

}  // namespace modelet::python
