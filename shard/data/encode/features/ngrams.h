// NgramHasher: words -> hashed n-grams, the features of text. Word n-grams of 1 to N neighbouring words and,
// for subwords, character n-grams of minimal to maximal length inside "<word>" (characters are those of
// UTF-8; after Bojanowski et al. 2017, arXiv:1607.04606). Hashes fall into a fixed number of buckets, which
// may be large: only buckets that occur in training become features. One thread uses a hasher.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"

namespace modelet::shard {

class NgramHasher {
 public:
  explicit NgramHasher(const Experiment::Text& options) : options_(options) {}

  // Adds the buckets of all n-grams of `words` to `buckets`, one entry for each occurrence. An empty word is
  // a border that no n-gram crosses.
  void append(std::span<const std::string_view> words, std::vector<uint32_t>& buckets);

 private:
  // The upper half of a good hash, scaled, so that no division is needed.
  uint32_t bucket_of(uint64_t hash) const {
    return static_cast<uint32_t>(((hash >> 32) * options_.buckets) >> 32);
  }
  void append_words(std::span<const std::string_view> words, std::vector<uint32_t>& buckets);
  void hash_words(std::span<const std::string_view> words);
  void append_characters(std::string_view word, std::vector<uint32_t>& buckets);

  Experiment::Text options_;
  std::vector<uint64_t> hashes_;  // of words
  std::vector<uint64_t> ngrams_;  // hashes of those that end with each word
  std::string wrapped_;           // <word>
};

}  // namespace modelet::shard
