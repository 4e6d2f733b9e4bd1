#include "shard/inference/embeddings.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/text/suggest.h"
#include "shard/data/encode/encoder.h"
#include "shard/kernels/ids.h"
#include "shard/modelet/modelet.h"

namespace modelet::shard {
namespace {

StringTable vocabulary(const Model& model) {
  if (model.query_encoder().encoding().format != DataFormat::kWords)
    throw UsageError(
        model.folder().string() +
        ": was not trained on running text (data.format = \"words\"), so it has no vocabulary of words");
  const std::string origin = (model.folder() / "encoder").string();
  StringTable words = encoder_labels(SafetensorsFile(model.encoder(), origin));
  if (words.size() != model.shape().labels || model.shape().features % words.size() != 0)
    throw FormatError(origin + ": damaged: its words are not the model's features and labels");
  return words;
}

}  // namespace

Embeddings::Embeddings(const Model& model)
    : words_(vocabulary(model)), width_(model.towers().size() * model.experiment().model.hidden.front()) {
  rows_.resize(words_.size() * width_);
  for (size_t t = 0; t < model.towers().size(); ++t)
    add_rows(model.towers()[t]->network(), t * model.experiment().model.hidden.front());
  for (size_t word = 0; word < words_.size(); ++word) {
    float* row = &rows_[word * width_];
    const double length = std::sqrt(std::inner_product(row, row + width_, row, 0.0));
    for (size_t i = 0; length > 0 && i < width_; ++i) row[i] = static_cast<float>(row[i] / length);
  }
}

// In the columns from `first` on.
void Embeddings::add_rows(const Network& network, size_t first) {
  const FeatureRows& features = network.features();
  const size_t positions = network.shape().features / words_.size();
  for (const Modelet* modelet : network.modelets_of_layer(0))
    for (size_t word = 0; word < words_.size(); ++word)
      for (size_t position = 0; position < positions; ++position)
        if (const uint32_t row = features.row(static_cast<uint32_t>(position * words_.size() + word));
            row != FeatureRows::kNone)
          modelet->parameters().add_row(row, 1, &rows_[word * width_ + first + modelet->spec().begin]);
}

std::vector<Embeddings::Neighbour> Embeddings::nearest(uint32_t word, size_t k) const {
  const float* const row = &rows_[word * width_];
  std::vector<Neighbour> all;
  for (uint32_t other = 0; other < words_.size(); ++other)
    if (other != word)
      all.push_back({other, std::inner_product(row, row + width_, &rows_[other * width_], 0.0f)});
  const auto end = all.begin() + static_cast<ptrdiff_t>(std::min(k, all.size()));
  std::partial_sort(all.begin(), end, all.end(), [](const Neighbour& a, const Neighbour& b) {
    return kernels::comes_before(-a.cosine, a.word, -b.cosine, b.word);
  });
  all.erase(end, all.end());
  return all;
}

std::vector<std::string_view> Embeddings::alike(std::string_view text, size_t k) const {
  constexpr size_t kLongest = 64;  // the distance takes the product of the lengths
  const size_t most_changes = std::min<size_t>(2, text.size() / 3 + 1);
  std::vector<std::pair<size_t, uint32_t>> found;
  for (uint32_t word = 0; text.size() <= kLongest && word < words_.size(); ++word) {
    const std::string_view other = words_.at(word);
    if (other.size() > text.size() + most_changes || text.size() > other.size() + most_changes) continue;
    const size_t changes = edit_distance(text, other);
    if (changes <= most_changes) found.emplace_back(changes, word);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string_view> words;
  for (size_t i = 0; i < std::min(k, found.size()); ++i) words.push_back(words_.at(found[i].second));
  return words;
}

}  // namespace modelet::shard
