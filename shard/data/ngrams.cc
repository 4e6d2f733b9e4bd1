#include "shard/data/ngrams.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/rng.h"

namespace modelet::shard {
namespace {

// Starts of the hashes: a word and a character n-gram of the same letters are different features.
constexpr uint64_t kWordSeed = 1, kCharacterSeed = 2;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

void NgramHasher::append(std::span<const std::string_view> words, std::vector<uint32_t>& buckets) {
  hashes_.resize(words.size());
  size_t size = buckets.size(), begin = 0;  // of the words since the last border
  buckets.resize(size + words.size() * options_.word_ngrams);
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word.empty()) {
      begin = i + 1;
      continue;
    }
    uint64_t hash = XXH3_64bits_withSeed(word.data(), word.size(), kWordSeed);
    hashes_[i] = hash;
    buckets[size++] = bucket_of(hash);
    // The n-grams that end with this word, from the shortest.
    const size_t longest = std::min<size_t>(options_.word_ngrams, i + 1 - begin);
    for (size_t n = 2; n <= longest; ++n) {
      hash = mix64(hash) + hashes_[i + 1 - n];  // no plain sum: "a b" is not "b a"
      buckets[size++] = bucket_of(hash);
    }
  }
  buckets.resize(size);
  if (options_.max_char == 0) return;
  for (const std::string_view word : words)
    if (!word.empty()) append_characters(word, buckets);
}

void NgramHasher::append_characters(std::string_view word, std::vector<uint32_t>& buckets) {
  wrapped_.assign("<").append(word).append(">");
  for (size_t begin = 0; begin < wrapped_.size(); ++begin) {
    if (continues_character(wrapped_[begin])) continue;
    size_t end = begin;
    for (uint32_t n = 1; n <= options_.max_char && end < wrapped_.size(); ++n) {
      do ++end;
      while (end < wrapped_.size() && continues_character(wrapped_[end]));
      // A border alone says nothing.
      const bool only_border = n == 1 && (begin == 0 || end == wrapped_.size());
      if (n >= options_.min_char && !only_border)
        buckets.push_back(bucket_of(XXH3_64bits_withSeed(&wrapped_[begin], end - begin, kCharacterSeed)));
    }
  }
}

}  // namespace modelet::shard
