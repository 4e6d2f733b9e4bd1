// WordsEncoder: running text -> samples that teach what words mean by their neighbours (format words). The
// vocabulary consists of the words that occur often enough, by falling frequency; a word has the same id as a
// label and, except with positions, as a feature. Words outside the vocabulary, and by chance many
// occurrences of frequent ones (sub-sampling; Mikolov et al. 2013, arXiv:1310.4546, in the form of its
// authors' program), are left out before windows are formed. Windows end at line ends; a line may have any
// length.
//
//   skipgram   a sample for each word: the word -> the words at most `window` before or after it
//   next       a sample for each word except the first of a line: the up to `window` words before it ->
//              the word; features are the words or, with words.positions, position and word:
//              (distance - 1) * vocabulary + id
//
// Any line of running text gives samples with labels. In a question (open_requests) each line is one sample
// without labels. Nothing but unknown words is left out.
//
//   skipgram   the words of the line -> what is around them
//   next       the last `window` words of the line -> the word after it
//
// State, besides that of every encoder (shard/data/encode/encoder.h): counts U64 [words]. Memory: the
// vocabulary, and while it is fitted at most kMaxCountedWords words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "shard/data/encode/encoder.h"
#include "shard/data/encode/features/string_table.h"
#include "shard/data/read/line_reader.h"

namespace modelet::shard {

// The words of a text and its line ends. One thread uses a reader.
class WordReader {
 public:
  static constexpr size_t kMaxWordBytes = 1024;  // longer ones are left out

  template <class... Source>
  explicit WordReader(Source&&... source) : text_(std::forward<Source>(source)...) {}

  // The next words and, for each line that ends among them, how many of them come before its end. They are
  // valid until the next call, and kReadableBehind bytes behind each may be read. False at the end.
  bool next(std::vector<std::string_view>& words, std::vector<size_t>& line_ends);

  uint64_t bytes() const { return text_.bytes(); }
  double fraction() const { return text_.fraction(); }
  const std::string& name() const { return text_.name(); }

 private:
  LineReader text_;
  size_t unfinished_ = 0;  // bytes of the word that the last buffer ended in
};

class WordsEncoder : public Encoder {
 public:
  // The most distinct words that are counted. When there are more, the rarest are dropped.
  static constexpr size_t kMaxCountedWords = size_t{1} << 24;

  static std::unique_ptr<WordsEncoder> fit(const Encoding& options, const std::filesystem::path& text,
                                           const FitProgress& progress);
  static std::unique_ptr<WordsEncoder> fit(const Encoding& options, WordReader words,
                                           const FitProgress& progress,
                                           size_t max_counted = kMaxCountedWords);
  explicit WordsEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  std::unique_ptr<SampleReader> open(LineReader text) const override;
  std::unique_ptr<SampleReader> open(WordReader words) const;
  std::unique_ptr<SampleReader> open_requests(LineReader text) const override;

  const StringTable& words() const { return words_; }

 private:
  class Reader;
  class RequestReader;

  explicit WordsEncoder(const Encoding& options) : options_(options) {}
  bool has_positions() const { return options_.words.task == WordsTask::kNext && options_.words.positions; }
  uint64_t features() const { return (has_positions() ? options_.words.window : 1) * words_.size(); }
  void choose_words(const StringTable& words, const std::vector<uint64_t>& counts, const std::string& text);
  void set_thresholds();

  Encoding options_;
  StringTable words_;
  std::vector<uint64_t> counts_;
  std::vector<float> keep_;  // [words] probability that an occurrence stays
};

}  // namespace modelet::shard
