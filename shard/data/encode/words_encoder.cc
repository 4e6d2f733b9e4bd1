#include "shard/data/encode/words_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/data/read/word_scan.h"
#include "shard/kernels/windows.h"

namespace modelet::shard {
namespace {

constexpr auto is_blank_byte = [](uint8_t c) { return c <= ' '; };

// Counts words. When there are too many distinct ones, the rarest are dropped: a word that is rare when the
// table is full hardly reaches the vocabulary.
class WordCounter {
 public:
  explicit WordCounter(size_t limit) : limit_(limit) {}

  void add(std::span<const std::string_view> words) {
    while (!words.empty()) {
      // So few words that at most the last of them is one too many.
      const auto some = words.first(std::min(words.size(), limit_ + 1 - words_.size()));
      words = words.subspan(some.size());
      ids_.resize(some.size());
      words_.insert(some, ids_);
      counts_.resize(words_.size());
      for (const uint32_t id : ids_) ++counts_[id];
      while (words_.size() > limit_) drop_up_to(++threshold_);
    }
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
  std::vector<uint32_t> ids_;
};

}  // namespace

bool WordReader::next(std::vector<std::string_view>& words, std::vector<size_t>& line_ends) {
  static_assert(kMaxWordBytes < LineReader::kMaxKept);
  words.clear();
  line_ends.clear();
  std::string_view text;
  const bool more = text_.next_buffer(text, unfinished_);
  if (!more && text.empty()) return false;
  // The word at the end may continue in the next buffer. If it is too long, enough is kept to show that.
  size_t whole = text.size();
  while (more && whole > 0 && !is_blank_byte(static_cast<uint8_t>(text[whole - 1]))) --whole;
  unfinished_ = std::min(text.size() - whole, kMaxWordBytes + 1);
  text = text.substr(0, whole);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    for_each_word(text.substr(0, end), is_blank_byte, [&](std::string_view word) {
      if (word.size() <= kMaxWordBytes) words.push_back(word);
    });
    if (end == std::string_view::npos) break;
    line_ends.push_back(words.size());
    text.remove_prefix(end + 1);
  }
  return true;
}

std::unique_ptr<WordsEncoder> WordsEncoder::fit(const Encoding& options, const std::filesystem::path& text,
                                                const FitProgress& progress) {
  return fit(options, WordReader(text), progress);
}

std::unique_ptr<WordsEncoder> WordsEncoder::fit(const Encoding& options, WordReader words,
                                                const FitProgress& progress, size_t max_counted) {
  constexpr uint64_t kWordsBetweenReports = 1 << 16;
  WordCounter counter(max_counted);
  uint64_t unreported = 0;
  std::vector<size_t> line_ends;
  for (std::vector<std::string_view> some; words.next(some, line_ends);) {
    counter.add(some);
    unreported += some.size();
    if (progress && unreported >= kWordsBetweenReports) {
      progress(words.bytes(), words.fraction());
      unreported = 0;
    }
  }
  std::unique_ptr<WordsEncoder> encoder(new WordsEncoder(options));
  encoder->choose_words(counter.words(), counter.counts(), words.name());
  encoder->set_thresholds();
  return encoder;
}

void WordsEncoder::choose_words(const StringTable& words, const std::vector<uint64_t>& counts,
                                const std::string& text) {
  std::vector<uint32_t> order;
  for (uint32_t id = 0; id < words.size(); ++id)
    if (counts[id] >= options_.words.min_count) order.push_back(id);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  order.resize(std::min<size_t>(order.size(), options_.words.vocabulary));
  if (order.size() < 2)
    throw UsageError(text + ": fewer than two words occur words.min_count = " +
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
      : encoder_(encoder),
        options_(encoder.options_.words),
        words_(std::move(words)),
        ids_(options_.window, kLineEnd),
        first_(options_.window),
        sets_(kTogether * 2 * options_.window + kVectorFloats),
        sizes_(kTogether),
        features_(options_.window),
        counts_(options_.window),
        ones_(options_.window, 1.0f) {}

  uint64_t features() const override { return encoder_.features(); }
  uint64_t labels() const override { return encoder_.words_.size(); }
  uint64_t bytes() const override { return words_.bytes(); }
  double fraction() const override { return words_.fraction(); }
  uint64_t unknown_labels() const override { return unknown_; }
  bool ready() const override { return next_ != windows_; }

  bool next(Sample& sample) override {
    do {
      if (next_ == windows_ && !next_windows()) return false;
      near_ = {set_, sizes_[next_]};
      set_ += sizes_[next_++];
    } while (near_.empty());
    if (++rows_ >= kMaxCount)
      throw FormatError("more than 2^31 - 1 words are left to train on; divide the file");
    const uint32_t* const centre = &ids_[first_ + next_ - 1];
    if (options_.task == WordsTask::kSkipgram)
      sample = {{centre, 1}, kOne, near_};
    else
      make_next(centre, sample);
    return true;
  }

 private:
  static constexpr uint32_t kLineEnd = kernels::kNoId;
  static constexpr size_t kTogether = 256;  // windows, so that their words stay in the first cache
  static constexpr std::array<float, 1> kOne = {1};

  // Number of words behind the centre that belong to its window.
  size_t ahead() const { return options_.task == WordsTask::kSkipgram ? options_.window : 0; }

  // The sets of the next windows. False at the end of the text.
  bool next_windows() {
    first_ += windows_;
    next_ = windows_ = 0;
    while (first_ + ahead() >= ids_.size())
      if (!read_ids()) return false;
    windows_ = std::min(kTogether, ids_.size() - ahead() - first_);
    set_ = sets_.data();
    if (!encoder_.has_positions()) {
      kernels::window_sets(&ids_[first_ - options_.window], windows_, options_.window, ahead(), sets_.data(),
                           sizes_.data());
      return true;
    }
    // With positions, a sample needs no set: its words are read from ids_. There is a sample if there is a
    // word before the centre.
    for (size_t i = 0; i < windows_; ++i) {
      const uint32_t *const centre = &ids_[first_ + i], before = *(centre - 1);
      sizes_[i] = (*centre != kLineEnd ? 1 : 0) & (before != kLineEnd ? 1 : 0);
    }
    return true;
  }

  // The next words of the text that stay. False at its end.
  bool read_ids() {
    if (end_) return false;
    end_ = !words_.next(text_, line_ends_);
    found_.resize(text_.size());
    encoder_.words_.find(text_, found_);
    // Forgets words that no window reaches any more.
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(first_ - options_.window));
    first_ = options_.window;
    std::span<const uint32_t> rest = found_;
    for (const size_t line_end : line_ends_) {
      add(rest.first(line_end - (found_.size() - rest.size())));
      rest = std::span(found_).subspan(line_end);
      end_line();
    }
    add(rest);
    if (end_) end_line();
    return true;
  }

  void add(std::span<const uint32_t> words) {
    size_t size = ids_.size();
    ids_.resize(size + words.size());
    const Rng subsample(options_.seed, {kStreamSubsample});
    for (const uint32_t id : words) {
      if (id == StringTable::kNone) {
        ++unknown_;
        continue;
      }
      ++position_;
      ids_[size] = id;
      // Drawn for all words, even for those that always stay: to find those out would cost more.
      size += subsample.stream(position_).uniform() < encoder_.keep_[id] ? 1 : 0;
    }
    ids_.resize(size);
  }

  // No window contains words of two lines.
  void end_line() {
    if (ids_.back() != kLineEnd) ids_.insert(ids_.end(), options_.window, kLineEnd);
  }

  void make_next(const uint32_t* centre, Sample& sample) {
    const uint32_t* before = centre - options_.window;
    while (*before == kLineEnd) ++before;
    const auto words = static_cast<size_t>(centre - before);
    std::span<const float> counts = ones_;
    if (encoder_.has_positions()) {
      for (size_t i = 0; i < words; ++i)
        features_[i] = static_cast<uint32_t>(i * encoder_.words_.size() + *(centre - 1 - i));
      near_ = std::span(features_).first(words);
    } else if (near_.size() < words) {
      std::fill_n(counts_.begin(), near_.size(), 0.0f);
      for (; before != centre; ++before)
        counts_[static_cast<size_t>(std::lower_bound(near_.begin(), near_.end(), *before) - near_.begin())] +=
            1;
      counts = counts_;
    }
    sample = {near_, counts.first(near_.size()), {centre, 1}};
  }

  const WordsEncoder& encoder_;
  const Experiment::Words options_;
  WordReader words_;
  std::vector<std::string_view> text_;  // words that were read together
  std::vector<size_t> line_ends_;       // among them
  std::vector<uint32_t> found_;         // their ids
  // The words that stay. `window` entries kLineEnd lie before the first line and at the end of each line.
  std::vector<uint32_t> ids_;
  bool end_ = false;  // of the text; all is in ids_
  size_t first_;      // index in ids_ of the centre of the first window; `window` entries lie before it
  size_t windows_ = 0, next_ = 0;       // how many windows there are, and the next one
  std::vector<uint32_t> sets_, sizes_;  // of their words
  const uint32_t* set_ = nullptr;       // of the next one, in sets_
  std::span<const uint32_t> near_;      // the words around the centre of the current sample
  std::vector<uint32_t> features_;      // with positions
  std::vector<float> counts_, ones_;    // how often each feature occurs; all ones
  uint64_t position_ = 0, unknown_ = 0, rows_ = 0;
};

class WordsEncoder::RequestReader : public SampleReader {
 public:
  RequestReader(const WordsEncoder& encoder, LineReader text) : encoder_(encoder), text_(std::move(text)) {}

  uint64_t features() const override { return encoder_.features(); }
  uint64_t labels() const override { return encoder_.words_.size(); }
  uint64_t bytes() const override { return text_.bytes(); }
  double fraction() const override { return text_.fraction(); }
  bool ready() const override { return text_.ready(); }

  bool next(Sample& sample) override {
    std::string_view line;
    if (!text_.next(line)) return false;
    words_.clear();
    for_each_word(line, is_blank_byte, [&](std::string_view word) {
      if (word.size() <= WordReader::kMaxWordBytes) words_.push_back(word);
    });
    features_.resize(words_.size());
    encoder_.words_.find(words_, features_);
    std::erase(features_, StringTable::kNone);
    const Experiment::Words& options = encoder_.options_.words;
    if (options.task == WordsTask::kNext && features_.size() > options.window)
      features_.erase(features_.begin(), features_.end() - options.window);
    if (encoder_.has_positions())
      for (size_t i = 0; i < features_.size(); ++i)
        features_[i] += static_cast<uint32_t>((features_.size() - 1 - i) * encoder_.words_.size());
    count_features();
    sample = {features_, counts_, {}};
    return true;
  }

 private:
  void count_features() {
    std::ranges::sort(features_);
    counts_.clear();
    for (size_t i = 0; i < features_.size(); ++i) {
      if (i == 0 || features_[i] != features_[i - 1]) counts_.push_back(0);
      counts_.back() += 1;
    }
    features_.erase(std::unique(features_.begin(), features_.end()), features_.end());
  }

  const WordsEncoder& encoder_;
  LineReader text_;
  std::vector<std::string_view> words_;  // of a line
  std::vector<uint32_t> features_;
  std::vector<float> counts_;  // how often each occurs
};

std::unique_ptr<SampleReader> WordsEncoder::open_requests(LineReader text) const {
  return std::make_unique<RequestReader>(*this, std::move(text));
}

std::unique_ptr<SampleReader> WordsEncoder::open(LineReader text) const {
  return open(WordReader(std::move(text)));
}

std::unique_ptr<SampleReader> WordsEncoder::open(WordReader words) const {
  return std::make_unique<Reader>(*this, std::move(words));
}

}  // namespace modelet::shard
