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
  last_.clear();
  for (const std::string_view word : words) {
    if (word.empty()) {
      last_.clear();
      continue;
    }
    uint64_t hash = XXH3_64bits_withSeed(word.data(), word.size(), kWordSeed);
    buckets.push_back(bucket_of(hash));
    if (options_.max_char > 0) append_characters(word, buckets);
    if (options_.word_ngrams == 1) continue;
    last_.push_back(hash);
    // The n-grams that end with this word, from the shortest.
    const size_t longest = std::min<size_t>(options_.word_ngrams, last_.size());
    for (size_t n = 2; n <= longest; ++n) {
      hash = mix64(hash) + last_[last_.size() - n];  // no plain sum: "a b" is not "b a"
      buckets.push_back(bucket_of(hash));
    }
  }
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
