#include "shard/data/encode/sessions_encoder.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/encode/features/last_items.h"
#include "shard/data/read/table_values.h"
#include "shard/data/read/word_scan.h"

namespace modelet::shard {
namespace {

// The items of a line: those that came before and, behind a tab, the others.
struct SessionLine {
  std::vector<std::string_view> before, after;
  bool divided = false;  // there is a tab

  void read(std::string_view line) {
    const size_t tab = line.find('\t');
    divided = tab != std::string_view::npos;
    take(line.substr(0, tab), before);
    take(divided ? line.substr(tab) : std::string_view(), after);
  }
  // As if there were a tab before the last item, if there is one.
  void divide_last() {
    divided = true;
    if (before.empty()) return;
    after = {before.back()};
    before.pop_back();
  }

 private:
  static void take(std::string_view text, std::vector<std::string_view>& items) {
    items.clear();
    for_each_word(text, is_space, [&](std::string_view item) { items.push_back(item); });
  }
};

constexpr size_t kMostNeighbours = 1'000'000;  // that are counted for the direction of sessions

uint64_t item_hash(std::string_view item) { return XXH3_64bits(item.data(), item.size()); }

uint32_t pair_bucket(std::string_view first, std::string_view second, uint32_t buckets) {
  return bucket_of(mix64(item_hash(first)) + item_hash(second), buckets);
}

}  // namespace

// Neither places nor pairs are features, which have a direction.
bool reads_both_ways(const Experiment::Sessions& options) { return options.positions == 0 && options.pairs == 0; }

double session_direction(LineReader text) {
  struct Orders {
    double forwards = 0, backwards = 0;  // from the smaller hash to the larger one, and the other way
  };
  std::unordered_map<uint64_t, Orders> pairs;
  SessionLine session;
  size_t neighbours = 0;
  for (std::string_view line; neighbours < kMostNeighbours && text.next(line);) {
    session.read(line);
    for (size_t i = 1; i < session.before.size(); ++i, ++neighbours) {
      const uint64_t first = item_hash(session.before[i - 1]), second = item_hash(session.before[i]);
      Orders& orders = pairs[mix64(std::min(first, second)) + std::max(first, second)];
      if (first != second) ++(first < second ? orders.forwards : orders.backwards);
    }
  }
  double same = 0, most = 0;
  for (const auto& pair : pairs) {
    const double count = pair.second.forwards + pair.second.backwards;
    const double difference = pair.second.forwards - pair.second.backwards;
    same += difference * difference - count;
    most += count * count - count;
  }
  return most > 0 ? same / most : 0;
}

SessionsEncoder::SessionsEncoder(const Encoding& options) : options_(options), pairs_(options.sessions.buckets) {}

std::unique_ptr<SessionsEncoder> SessionsEncoder::fit(const Encoding& options, const std::filesystem::path& text,
                                                      const FitProgress& progress) {
  return fit(options, LineReader(text), progress);
}

std::unique_ptr<SessionsEncoder> SessionsEncoder::fit(const Encoding& options, LineReader text,
                                                      const FitProgress& progress) {
  std::unique_ptr<SessionsEncoder> encoder(new SessionsEncoder(options));
  const auto fail = [&](const std::string& what) { text.fail(what); };
  SessionLine session;
  uint64_t lines = 0, samples = 0;
  std::string_view line;
  while (text.next(line)) {
    session.read(line);
    if (++lines >= kMaxCount) fail(kTooManySamples);
    for (const auto* items : {&session.before, &session.after})
      for (const std::string_view item : *items) {
        require_label_length(item, fail);
        encoder->items_.count(item, lines);
      }
    const auto& before = session.before;
    if (session.divided)
      ++samples;
    else if (!before.empty())
      samples += before.size() - 1;
    // The last item of a session comes before nothing.
    const size_t ends = session.divided ? before.size() : std::max<size_t>(before.size(), 1) - 1;
    for (size_t i = 1; i < ends; ++i)
      encoder->pairs_.count(pair_bucket(before[i - 1], before[i], encoder->pairs_.buckets()), lines);
    if (progress && lines % kRecordsBetweenReports == 0) progress(text.bytes(), text.fraction());
  }
  encoder->items_.finish(options.sessions.min_count);
  encoder->pairs_.finish(options.sessions.min_count);
  if (samples == 0 || encoder->items_.names().size() < 2)
    fail("the training text has no session of two items that occur in sessions.min_count = " +
         std::to_string(options.sessions.min_count) + " lines; is data.format right?");
  encoder->number_features(text.name());
  return encoder;
}

SessionsEncoder::SessionsEncoder(const SafetensorsFile& state) : SessionsEncoder(encoder_options(state)) {
  items_ = LabelNames(encoder_labels(state));
  pairs_.restore(state, "known");
  if (items_.names().size() < 2) throw FormatError(state.path().string() + ": damaged: it has no items");
  number_features(state.path().string());
}

void SessionsEncoder::number_features(const std::string& origin) {
  const uint64_t of_items = LastItems::features(options_.sessions, items_.names().size());
  if (of_items + pairs_.buckets() >= kMaxCount)
    throw UsageError(origin + ": " + std::to_string(items_.names().size()) + " items at " +
                     std::to_string(options_.sessions.positions) +
                     " places are more than 2^31 features; lower sessions.positions, or raise sessions.min_count");
  features_ = pairs_.number_from(static_cast<uint32_t>(of_items));
}

std::vector<std::byte> SessionsEncoder::state() const {
  std::vector<Tensor> tensors = label_tensors(items_.names());
  tensors.push_back(pairs_.as_tensor("known"));
  return safetensors_bytes(tensors, encoder_metadata(options_));
}

class SessionsEncoder::Reader : public SampleReader {
 public:
  Reader(const SessionsEncoder& encoder, Samples samples, LineReader text)
      : encoder_(encoder),
        options_(encoder.options_.sessions),
        samples_(samples),
        text_(std::move(text)),
        last_items_(options_, static_cast<uint32_t>(encoder.items_.names().size())) {}

  uint64_t features() const override { return encoder_.features_; }
  uint64_t labels() const override { return encoder_.items_.names().size(); }
  bool ready() const override { return next_ < end_ || text_.ready(); }
  uint64_t bytes() const override { return text_.bytes(); }
  double fraction() const override { return text_.fraction(); }
  uint64_t unknown_labels() const override { return unknown_labels_; }

  bool next(Sample& sample) override {
    while (next_ == end_)
      if (!turn_round() && !read_line()) return false;
    if (++rows_ >= kMaxCount) text_.fail(kTooManySamples);
    // Of the present sample, `next_` items came before.
    if (!session_.divided && samples_ == Samples::kOfEachItem) labels_ = {ids_[next_]};
    features_.clear();
    last_items_.append(std::span(ids_).first(next_), features_);
    encode_pairs(next_);
    ++next_;
    sample = {features_.ids, features_.values, labels_};
    return true;
  }

 private:
  // Turns the items of a training line round, once, if no feature says in which order they came.
  bool turn_round() {
    if (turned_ || session_.divided || samples_ != Samples::kOfEachItem || !reads_both_ways(options_)) return false;
    turned_ = true;
    std::ranges::reverse(ids_);
    next_ = std::min<size_t>(1, ids_.size());
    return next_ < end_;
  }

  // The next line, and which of its items came before the first of its samples; false at the end of the text.
  bool read_line() {
    std::string_view line;
    if (!text_.next(line)) return false;
    session_.read(line);
    turned_ = false;
    if (samples_ == Samples::kOfLastItem && !session_.divided) session_.divide_last();
    find_items();
    next_ = ids_.size();
    end_ = next_ + 1;
    labels_.clear();
    if (session_.divided && samples_ != Samples::kOfAll)
      unknown_labels_ += encoder_.items_.find(session_.after, labels_);
    if (!session_.divided && samples_ == Samples::kOfEachItem) {
      next_ = std::min<size_t>(1, ids_.size());
      end_ = ids_.size();
    }
    return true;
  }

  // The known items of what came before.
  void find_items() {
    items_ = session_.before;
    ids_.resize(items_.size());
    encoder_.items_.names().find(items_, ids_);
    size_t known = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] == StringTable::kNone) continue;
      ids_[known] = ids_[i];
      items_[known++] = items_[i];
    }
    ids_.resize(known);
    items_.resize(known);
  }

  void encode_pairs(size_t before) {
    for (size_t pair = 0; pair < options_.pairs && pair + 2 <= before; ++pair) {
      const size_t second = before - 1 - pair;
      const uint32_t feature =
          encoder_.pairs_.feature_of(pair_bucket(items_[second - 1], items_[second], encoder_.pairs_.buckets()));
      if (feature != kNoFeature) bag_.add(feature, 1);
    }
    bag_.move_to(features_);
  }

  const SessionsEncoder& encoder_;
  const Experiment::Sessions options_;
  const Samples samples_;
  LineReader text_;
  LastItems last_items_;
  SessionLine session_;
  std::vector<std::string_view> items_;  // known ones of what came before
  std::vector<uint32_t> ids_;            // of these
  size_t next_ = 0, end_ = 0;            // how many came before the next sample of the line, and behind the last one
  FeatureBag bag_;
  FeatureList features_;
  std::vector<uint32_t> labels_;
  bool turned_ = true;
  uint64_t rows_ = 0, unknown_labels_ = 0;
};

std::unique_ptr<SampleReader> SessionsEncoder::open(LineReader text) const {
  return std::make_unique<Reader>(*this, Samples::kOfLastItem, std::move(text));
}

std::unique_ptr<SampleReader> SessionsEncoder::open_training(const std::filesystem::path& text) const {
  return open_training(LineReader(text));
}

std::unique_ptr<SampleReader> SessionsEncoder::open_training(LineReader text) const {
  return std::make_unique<Reader>(*this, Samples::kOfEachItem, std::move(text));
}

std::unique_ptr<SampleReader> SessionsEncoder::open_requests(LineReader text) const {
  return std::make_unique<Reader>(*this, Samples::kOfAll, std::move(text));
}

}  // namespace modelet::shard
