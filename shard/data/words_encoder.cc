#include "shard/data/words_encoder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }

// Words with their occurrences, thinned out when they become too many: what is rare when the table is full
// hardly reaches the vocabulary.
class WordCounter {
 public:
  explicit WordCounter(size_t limit) : limit_(limit) {}

  void add(std::string_view word) {
    const uint32_t id = words_.insert(word);
    if (id == counts_.size()) counts_.push_back(0);
    ++counts_[id];
    while (words_.size() > limit_) drop_up_to(++threshold_);
  }

  const StringTable& words() const { return words_; }
  const std::vector<uint64_t>& counts() const { return counts_; }

 private:
  void drop_up_to(uint64_t count) {
    StringTable kept;
    std::vector<uint64_t> kept_counts;
    for (uint32_t id = 0; id < words_.size(); ++id) {
      if (counts_[id] <= count) continue;
      kept.insert(words_.at(id));
      kept_counts.push_back(counts_[id]);
    }
    words_ = std::move(kept);
    counts_ = std::move(kept_counts);
  }

  size_t limit_;
  uint64_t threshold_ = 0;
  StringTable words_;
  std::vector<uint64_t> counts_;
};

}  // namespace

WordReader::Token WordReader::next(std::string_view& word) {
  carried_.clear();
  for (;;) {
    const bool at_end = piece_.empty() && !text_.next_piece(piece_);
    if (!at_end && !is_space(piece_.front())) {
      const auto end = std::find_if(piece_.begin(), piece_.end(), is_space);
      const auto length = static_cast<size_t>(end - piece_.begin());
      const std::string_view found = piece_.substr(0, length);
      piece_.remove_prefix(length);
      if (carried_.empty() && !piece_.empty() && length <= kMaxWordBytes) {
        word = found;
        return Token::kWord;
      }
      // At the end of the piece the word may go on in the next one. Of one that is too long, a part is
      // enough.
      carried_ += found.substr(0, kMaxWordBytes + 1);
      carried_.resize(std::min(carried_.size(), kMaxWordBytes + 1));
      continue;
    }
    if (carried_.size() > kMaxWordBytes) carried_.clear();
    if (!carried_.empty()) {
      word = carried_;
      return Token::kWord;
    }
    if (at_end) return Token::kEnd;
    const bool line_end = piece_.front() == '\n';
    piece_.remove_prefix(1);
    if (line_end) return Token::kLineEnd;
  }
}

std::unique_ptr<WordsEncoder> WordsEncoder::fit(const Experiment& options, const std::filesystem::path& text,
                                                const FitProgress& progress) {
  return fit(options, WordReader(text), progress);
}

std::unique_ptr<WordsEncoder> WordsEncoder::fit(const Experiment& options, WordReader words,
                                                const FitProgress& progress, size_t max_counted) {
  constexpr uint64_t kWordsBetweenReports = 1 << 16;
  WordCounter counter(max_counted);
  uint64_t read = 0;
  for (std::string_view word;;) {
    const WordReader::Token token = words.next(word);
    if (token == WordReader::Token::kEnd) break;
    if (token == WordReader::Token::kLineEnd) continue;
    counter.add(word);
    if (progress && ++read % kWordsBetweenReports == 0) progress(words.bytes(), words.fraction());
  }
  std::unique_ptr<WordsEncoder> encoder(new WordsEncoder(options));
  encoder->choose_words(counter.words(), counter.counts());
  encoder->set_thresholds();
  return encoder;
}

void WordsEncoder::choose_words(const StringTable& words, const std::vector<uint64_t>& counts) {
  std::vector<uint32_t> order;
  for (uint32_t id = 0; id < words.size(); ++id)
    if (counts[id] >= options_.words.min_count) order.push_back(id);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  order.resize(std::min<size_t>(order.size(), options_.words.vocabulary));
  if (order.size() < 2)
    throw UsageError("fewer than two words occur words.min_count = " +
                     std::to_string(options_.words.min_count) + " times; lower it, or take a larger text");
  for (const uint32_t id : order) {
    words_.insert(words.at(id));
    counts_.push_back(counts[id]);
  }
}

// sqrt(t / f) + t / f, f: the word's share of all words.
void WordsEncoder::set_thresholds() {
  const double all = static_cast<double>(std::accumulate(counts_.begin(), counts_.end(), uint64_t{0}));
  const double threshold = options_.words.subsample;
  for (const uint64_t count : counts_) {
    const double ratio = threshold * all / static_cast<double>(count);
    keep_.push_back(threshold == 0 ? 1.0f : static_cast<float>(std::min(1.0, std::sqrt(ratio) + ratio)));
  }
}

WordsEncoder::WordsEncoder(const SafetensorsFile& state)
    : options_(encoder_options(state)), words_(encoder_labels(state)) {
  const auto counts = state.values<uint64_t>("counts", {words_.size()});
  constexpr uint64_t kMostOccurrences = uint64_t{1} << 48;
  if (words_.size() < 2 ||
      !std::all_of(counts.begin(), counts.end(), [](uint64_t n) { return n > 0 && n < kMostOccurrences; }))
    throw FormatError(state.path().string() + ": damaged: a word without occurrences, or no words");
  counts_.assign(counts.begin(), counts.end());
  set_thresholds();
}

std::vector<std::byte> WordsEncoder::state() const {
  std::vector<Tensor> tensors = label_tensors(words_);
  tensors.push_back(tensor("counts", {counts_.size()}, counts_));
  return safetensors_bytes(tensors, encoder_metadata(options_));
}

class WordsEncoder::Reader : public SampleReader {
 public:
  Reader(const WordsEncoder& encoder, WordReader words)
      : encoder_(encoder), options_(encoder.options_.words), words_(std::move(words)) {}

  uint64_t features() const override {
    const bool positions = options_.task == WordsTask::kNext && options_.positions;
    return (positions ? options_.window : 1) * labels();
  }
  uint64_t labels() const override { return encoder_.words_.size(); }
  uint64_t bytes() const override { return words_.bytes(); }
  double fraction() const override { return words_.fraction(); }
  uint64_t unknown_labels() const override { return unknown_; }

  bool next(Sample& sample) override {
    for (;;) {
      read_ahead();
      if (centre_ == line_.size()) {
        if (end_) return false;
        line_.clear();
        centre_ = 0;
        line_end_ = false;
        continue;
      }
      const bool has_neighbours = options_.task == WordsTask::kSkipgram ? make_skipgram() : make_next();
      forget();
      ++centre_;
      if (!has_neighbours) continue;
      if (++rows_ >= kMaxCount)
        throw FormatError("more than 2^31 words are left to train on; divide the text");
      sample = {features_, values_, labels_};
      return true;
    }
  }

 private:
  size_t ahead() const { return options_.task == WordsTask::kSkipgram ? options_.window : 0; }

  // Until the line ends or holds the centre and what follows it in its window.
  void read_ahead() {
    while (!line_end_ && line_.size() <= centre_ + ahead()) {
      std::string_view word;
      const WordReader::Token token = words_.next(word);
      end_ = token == WordReader::Token::kEnd;
      line_end_ = token != WordReader::Token::kWord;
      if (!line_end_) add(word);
    }
  }

  void add(std::string_view word) {
    const uint32_t id = encoder_.words_.find(word);
    if (id == StringTable::kNone) {
      ++unknown_;
      return;
    }
    const float keep = encoder_.keep_[id];
    ++position_;
    if (keep < 1 && Rng(options_.seed, {kStreamSubsample, position_}).uniform() >= keep) return;
    line_.push_back(id);
  }

  // Words that no window reaches any more, now and then: a line may be the whole text.
  void forget() {
    constexpr size_t kKept = 4096;
    if (centre_ < kKept + options_.window) return;
    line_.erase(line_.begin(), line_.begin() + static_cast<ptrdiff_t>(kKept));
    centre_ -= kKept;
  }

  // False if the word has no neighbours.
  bool make_skipgram() {
    const size_t first = centre_ - std::min<size_t>(centre_, options_.window);
    const size_t last = std::min<size_t>(centre_ + options_.window + 1, line_.size());
    labels_.clear();
    for (size_t i = first; i < last; ++i)
      if (i != centre_) labels_.push_back(line_[i]);
    std::sort(labels_.begin(), labels_.end());
    labels_.erase(std::unique(labels_.begin(), labels_.end()), labels_.end());
    features_.assign(1, line_[centre_]);
    values_.assign(1, 1.0f);
    return !labels_.empty();
  }

  bool make_next() {
    const size_t before = std::min<size_t>(centre_, options_.window);
    occurrences_.clear();
    for (size_t distance = 1; distance <= before; ++distance) {
      const size_t shift = options_.positions ? (distance - 1) * encoder_.words_.size() : 0;
      occurrences_.push_back(static_cast<uint32_t>(shift + line_[centre_ - distance]));
    }
    std::sort(occurrences_.begin(), occurrences_.end());
    features_.clear();
    values_.clear();
    for (const uint32_t feature : occurrences_) {
      if (features_.empty() || features_.back() != feature) {
        features_.push_back(feature);
        values_.push_back(0);
      }
      ++values_.back();
    }
    labels_.assign(1, line_[centre_]);
    return before > 0;
  }

  const WordsEncoder& encoder_;
  const Experiment::Words options_;
  WordReader words_;
  std::vector<uint32_t> line_;  // ids of the current line that a window may still reach
  size_t centre_ = 0;           // of the next sample, in line_
  bool line_end_ = false, end_ = false;
  uint64_t position_ = 0, unknown_ = 0, rows_ = 0;
  std::vector<uint32_t> occurrences_, features_, labels_;
  std::vector<float> values_;
};

std::unique_ptr<SampleReader> WordsEncoder::open(const std::filesystem::path& text) const {
  return open(WordReader(text));
}

std::unique_ptr<SampleReader> WordsEncoder::open(WordReader words) const {
  return std::make_unique<Reader>(*this, std::move(words));
}

}  // namespace modelet::shard
