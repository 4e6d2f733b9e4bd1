#include "shard/data/encode/features/ngrams.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "base/rng.h"

namespace modelet::shard {
namespace {

// Initial values of the hashes: a word and a character n-gram of the same letters are different features.
constexpr uint64_t kWordSeed = 1, kCharacterSeed = 2;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

void NgramHasher::append(std::span<const std::string_view> words, std::vector<uint32_t>& buckets) {
  for (auto rest = words; !rest.empty();) {
    const auto border = std::ranges::find(rest, std::string_view());
    const auto unbroken = static_cast<size_t>(border - rest.begin());
    append_words(rest.first(unbroken), buckets);
    rest = rest.subspan(std::min(unbroken + 1, rest.size()));
  }
  if (options_.max_char == 0) return;
  for (const std::string_view word : words)
    if (!word.empty()) append_characters(word, buckets);
}

void NgramHasher::append_words(std::span<const std::string_view> words, std::vector<uint32_t>& buckets) {
  const size_t longest = std::min<size_t>(options_.word_ngrams, words.size()), before = buckets.size();
  buckets.resize(before + words.size() * longest);
  uint32_t* to = buckets.data() + before;
  hash_words(words);
  for (const uint64_t hash : hashes_) *to++ = bucket_of(hash);
  ngrams_ = hashes_;
  for (size_t n = 2; n <= longest; ++n)
    for (size_t i = n - 1; i < words.size(); ++i) {
      ngrams_[i] = mix64(ngrams_[i]) + hashes_[i + 1 - n];  // no plain sum: "a b" is not "b a"
      *to++ = bucket_of(ngrams_[i]);
    }
  buckets.resize(static_cast<size_t>(to - buckets.data()));
}

// XXH3 is inlined: calling it would take as long as hashing a short word.
[[gnu::flatten]] void NgramHasher::hash_words(std::span<const std::string_view> words) {
  hashes_.resize(words.size());
  for (size_t i = 0; i < words.size(); ++i)
    hashes_[i] = XXH3_64bits_withSeed(words[i].data(), words[i].size(), kWordSeed);
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
