// SessionsEncoder: sessions -> samples that teach which item comes next (format sessions). A line is a session: items,
// which are words, in their order. Items of the training text are labels, numbered by falling frequency; others are left
// out. Training text has a sample for each item of a line after the first: what came before it -> the item. If neither
// places nor pairs are features, which tell the order, it also has the samples of the line read backwards, because what
// came after an item says as much about it. In other text a line is one sample: its last item is the label. With a tab in
// a line, the items behind it are the labels and those before it what came before, in all text. In a question
// (open_requests) a line has no label: all of it came before.
// Features of what came before:
//
//   the last items (features/last_items.h)
//   behind these, for each bucket      each of the last sessions.pairs pairs of neighbours, hashed
//
//
// State, besides that of every encoder (shard/data/encode/encoder.h): known (features/known_buckets.h), of pairs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "shard/data/encode/encoder.h"
#include "shard/data/encode/features/known_buckets.h"
#include "shard/data/encode/features/label_names.h"

namespace modelet::shard {

// Whether training lines are read backwards, too.
bool reads_both_ways(const Experiment::Sessions& options);

// How much the order of neighbours says, from the first lines of a training text. 1: of two items, always the same one
// comes first; 0: either does, as if by chance; below 0: they alternate. It is the mean over pairs of different items of
// (d^2 - n) / (n^2 - n), weighted by n^2 - n, where d is how much more often one of n neighbourhoods has one order than
// the other; chance alone has the mean 0 however rare pairs are. Throws as LineReader.
double session_direction(LineReader text);

class SessionsEncoder : public Encoder {
 public:
  static std::unique_ptr<SessionsEncoder> fit(const Encoding& options, const std::filesystem::path& text,
                                              const FitProgress& progress);
  static std::unique_ptr<SessionsEncoder> fit(const Encoding& options, LineReader text, const FitProgress& progress);
  explicit SessionsEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  using Encoder::open;
  std::unique_ptr<SampleReader> open(LineReader text) const override;
  std::unique_ptr<SampleReader> open_training(const std::filesystem::path& text) const override;
  std::unique_ptr<SampleReader> open_training(LineReader text) const;
  std::unique_ptr<SampleReader> open_requests(LineReader text) const override;

 private:
  class Reader;
  // What the items of a line are samples of.
  enum class Samples { kOfEachItem, kOfLastItem, kOfAll };

  explicit SessionsEncoder(const Encoding& options);
  void number_features(const std::string& origin);

  Encoding options_;
  LabelNames items_;
  KnownBuckets pairs_;
  uint32_t features_ = 0;
};

}  // namespace modelet::shard
