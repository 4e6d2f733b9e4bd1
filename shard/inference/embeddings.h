// Embeddings: what a model trained on running text (data.format "words") has learned about each word of its
// vocabulary: the rows of its input layer, those of all towers side by side, scaled to length one. Immutable: any thread may use it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shard/data/encode/features/string_table.h"
#include "shard/inference/model.h"

namespace modelet::shard {

class Embeddings {
 public:
  struct Neighbour {
    uint32_t word = 0;
    float cosine = 0;
  };

  // UsageError if the model was not trained on running text. If a word is several features, one for each
  // position, their rows are added.
  explicit Embeddings(const Model& model);

  const StringTable& words() const { return words_; }

  // The k words nearest to `word` by cosine, nearest first (ties: the more frequent word first), without
  // itself.
  std::vector<Neighbour> nearest(uint32_t word, size_t k) const;

  // Words of the vocabulary that `text` may have meant, nearest spelling first, at most `k`.
  std::vector<std::string_view> alike(std::string_view text, size_t k) const;

 private:
  void add_rows(const Network& network, size_t first);

  StringTable words_;
  size_t width_ = 0;
  std::vector<float> rows_;  // [words, width]
};

}  // namespace modelet::shard
