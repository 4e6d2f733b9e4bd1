// TextEncoder: records of words and labels (format text) -> samples: WordFeatures and LabelNames of what a line has
// (shard/data/encode/features). Its state is theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "shard/data/encode/encoder.h"
#include "shard/data/encode/features/label_names.h"
#include "shard/data/encode/features/word_features.h"
#include "shard/data/read/text_records.h"

namespace modelet::shard {

class TextEncoder : public Encoder {
 public:
  static std::unique_ptr<TextEncoder> fit(const Encoding& options, const std::filesystem::path& text,
                                          const FitProgress& progress);
  static std::unique_ptr<TextEncoder> fit(const Encoding& options, TextRecords records,
                                          const FitProgress& progress);
  static std::unique_ptr<TextEncoder> hashed(const Encoding& options, LabelNames labels);
  explicit TextEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  using Encoder::open;
  std::unique_ptr<SampleReader> open(LineReader text) const override;

 private:
  class Reader;

  explicit TextEncoder(const Encoding& options) : options_(options), words_(options.text) {}

  Encoding options_;
  LabelNames labels_;
  WordFeatures words_;
};

}  // namespace modelet::shard
