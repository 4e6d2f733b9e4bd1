#include "shard/data/words_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/sorted_ids.h"
#include "shard/data/word_scan.h"

namespace modelet::shard {
namespace {

constexpr auto is_space = [](uint8_t c) { return c <= ' '; };

// Words with their occurrences, thinned out when they become too many: what is rare when the table is full
// hardly reaches the vocabulary.
class WordCounter {
 public:
  explicit WordCounter(size_t limit) : limit_(limit) {}

  void add(std::span<const std::string_view> words) {
    while (!words.empty()) {
      // So few that at most the last of them is one too many.
      const auto part = words.first(std::min(words.size(), limit_ + 1 - words_.size()));
      words = words.subspan(part.size());
      ids_.resize(part.size());
      words_.insert(part, ids_);
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

bool WordReader::next(std::vector<std::string_view>& words) {
  static_assert(kMaxWordBytes < LineReader::kMaxKept);
  words.clear();
  while (words.empty()) {
    std::string_view text;
    const bool more = text_.next_piece(text, unfinished_);
    if (!more && text.empty()) return false;
    // The word at the end may go on in the next piece. Of one that is too long, as much is kept as shows it.
    size_t whole = text.size();
    while (more && whole > 0 && !is_space(static_cast<uint8_t>(text[whole - 1]))) --whole;
    unfinished_ = std::min(text.size() - whole, kMaxWordBytes + 1);
    text = text.substr(0, whole);

    const char* gap = text.data();  // behind the last word
    const auto add_line_end = [&](const char* end) {
      bool found = false;
      for (const char* p = gap; p != end; ++p) found |= *p == '\n';
      if (found) words.emplace_back(gap, 0);
    };
    for_each_word(text, is_space, [&](std::string_view word) {
      add_line_end(word.data());
      gap = word.data() + word.size();
      if (word.size() <= kMaxWordBytes) words.push_back(word);
    });
    add_line_end(text.data() + text.size());
  }
  return true;
}

std::unique_ptr<WordsEncoder> WordsEncoder::fit(const Experiment& options, const std::filesystem::path& text,
                                                const FitProgress& progress) {
  return fit(options, WordReader(text), progress);
}

std::unique_ptr<WordsEncoder> WordsEncoder::fit(const Experiment& options, WordReader words,
                                                const FitProgress& progress, size_t max_counted) {
  constexpr uint64_t kWordsBetweenReports = 1 << 16;
  WordCounter counter(max_counted);
  uint64_t unreported = 0;
  for (std::vector<std::string_view> part; words.next(part);) {
    std::erase_if(part, [](std::string_view word) { return word.empty(); });
    counter.add(part);
    unreported += part.size();
    if (progress && unreported >= kWordsBetweenReports) {
      progress(words.bytes(), words.fraction());
      unreported = 0;
    }
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
      : encoder_(encoder),
        options_(encoder.options_.words),
        words_(std::move(words)),
        near_(ahead() + 1 + options_.window),
        neighbours_(2 * options_.window + 1),
        counts_(2 * options_.window + 1) {}

  uint64_t features() const override { return (has_positions() ? options_.window : 1) * labels(); }
  uint64_t labels() const override { return encoder_.words_.size(); }
  uint64_t bytes() const override { return words_.bytes(); }
  double fraction() const override { return words_.fraction(); }
  uint64_t unknown_labels() const override { return unknown_; }

  bool next(Sample& sample) override {
    for (;;) {
      if (centre_ == line_.size()) {
        if (end_) return false;
        begin_line();
        continue;
      }
      centre_id_ = line_[centre_];
      const bool has_neighbours =
          options_.task == WordsTask::kSkipgram ? make_skipgram(sample) : make_next(sample);
      advance();
      if (!has_neighbours) continue;
      if (++rows_ >= kMaxCount)
        throw FormatError("more than 2^31 words are left to train on; divide the text");
      return true;
    }
  }

 private:
  static constexpr uint32_t kLineEnd = SortedIds::kNone;
  static constexpr std::array<float, 1> kOne = {1};

  bool has_positions() const { return options_.task == WordsTask::kNext && options_.positions; }
  // How many words behind the centre belong to its window.
  size_t ahead() const { return options_.task == WordsTask::kSkipgram ? options_.window : 0; }

  void begin_line() {
    line_.clear();
    near_.clear();
    centre_ = 0;
    line_end_ = false;
    while (!line_end_ && line_.size() <= ahead()) move_window(SortedIds::kNone, read_id());
  }

  // The window moves on by a word. Words that none reaches any more are forgotten now and then: a line may be
  // the whole text.
  void advance() {
    constexpr size_t kKept = 4096;
    move_window(centre_ < options_.window ? SortedIds::kNone : line_[centre_ - options_.window], read_id());
    ++centre_;
    if (centre_ < kKept + options_.window) return;
    line_.erase(line_.begin(), line_.begin() + static_cast<ptrdiff_t>(kKept));
    centre_ -= kKept;
  }

  // Samples with positions are read from the line itself.
  void move_window(uint32_t leaving, uint32_t entering) {
    if (!has_positions()) near_.replace(leaving, entering);
  }

  // The next word of the line; from its end on, kLineEnd.
  uint32_t read_id() {
    if (line_end_) return kLineEnd;
    while (!end_ && next_id_ == ids_.size()) end_ = !read_ids();
    const uint32_t id = end_ ? kLineEnd : ids_[next_id_++];
    line_end_ = id == kLineEnd;
    if (!line_end_) line_.push_back(id);
    return id;
  }

  // The next words and line ends of the text. False at its end.
  bool read_ids() {
    if (!words_.next(text_)) return false;
    ids_.resize(text_.size());
    encoder_.words_.find(text_, ids_);
    const Rng subsample(options_.seed, {kStreamSubsample});
    size_t kept = 0;
    for (size_t i = 0; i < text_.size(); ++i) {
      const uint32_t id = ids_[i];
      if (text_[i].empty()) {
        ids_[kept++] = kLineEnd;
      } else if (id == StringTable::kNone) {
        ++unknown_;
      } else {
        ++position_;
        ids_[kept] = id;
        // Drawn for all words, also for those that always stay: cheaper than to guess which these are.
        kept += subsample.stream(position_).uniform() < encoder_.keep_[id] ? 1 : 0;
      }
    }
    ids_.resize(kept);
    next_id_ = 0;
    return true;
  }

  // False if the word has no neighbours.
  bool make_skipgram(Sample& sample) {
    const std::span<const uint32_t> near = near_.all();
    const uint32_t centre = centre_id_;
    uint32_t before = SortedIds::kNone;
    size_t distinct = 0;
    for (size_t i = 0; i + 1 < near.size(); ++i) {
      const uint32_t id = near[i];
      // Whether it is the last of equal ones, and not the centre's own occurrence alone. The differences are
      // zero or not: of conditions, GCC makes a branch.
      const uint64_t last = id ^ near[i + 1];  // also zero in empty places
      const uint64_t other = uint64_t{id ^ centre} | uint64_t{id == before};
      neighbours_[distinct] = id;
      distinct += last * other != 0 ? 1 : 0;
      before = id;
    }
    sample = {std::span(&centre_id_, 1), kOne, std::span(neighbours_).first(distinct)};
    return distinct > 0;
  }

  bool make_next(Sample& sample) {
    size_t distinct = std::min<size_t>(centre_, options_.window);
    if (has_positions()) {
      for (size_t i = 0; i < distinct; ++i) {
        neighbours_[i] = static_cast<uint32_t>(i * encoder_.words_.size() + line_[centre_ - 1 - i]);
        counts_[i] = 1;
      }
    } else {
      distinct = count_neighbours();
    }
    sample = {std::span(neighbours_).first(distinct), std::span(counts_).first(distinct),
              std::span(&centre_id_, 1)};
    return distinct > 0;
  }

  // The distinct words in the window, without the centre's own occurrence: how many.
  size_t count_neighbours() {
    const std::span<const uint32_t> near = near_.all();
    size_t distinct = 0;
    int32_t count = 0;
    for (size_t i = 0; i + 1 < near.size(); ++i) {
      const bool last = near[i] != near[i + 1];
      ++count;
      const int32_t others = count - (near[i] == centre_id_ ? 1 : 0);
      neighbours_[distinct] = near[i];
      counts_[distinct] = static_cast<float>(others);
      distinct += last & (others > 0) ? 1 : 0;
      count = last ? 0 : count;
    }
    return distinct;
  }

  const WordsEncoder& encoder_;
  const Experiment::Words options_;
  WordReader words_;
  std::vector<std::string_view> text_;  // words that were read together
  std::vector<uint32_t> ids_;           // of those that stay, and line ends
  size_t next_id_ = 0;                  // of these
  std::vector<uint32_t> line_;          // ids of the current line that a window may still reach
  SortedIds near_;          // those of them in the window of the centre, with it; unused with positions
  size_t centre_ = 0;       // of the next sample, in line_
  uint32_t centre_id_ = 0;  // line_[centre_], where the sample can refer to it
  bool line_end_ = false, end_ = false;
  uint64_t position_ = 0, unknown_ = 0, rows_ = 0;
  std::vector<uint32_t> neighbours_;  // of the centre, ascending
  std::vector<float> counts_;         // [neighbours] how often each occurs
};

std::unique_ptr<SampleReader> WordsEncoder::open(const std::filesystem::path& text) const {
  return open(WordReader(text));
}

std::unique_ptr<SampleReader> WordsEncoder::open(WordReader words) const {
  return std::make_unique<Reader>(*this, std::move(words));
}

}  // namespace modelet::shard
