// Any bytes as labelled text, CSV, sessions and running text. They must be fitted and read back, or be an error.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "shard/data/encode/columns_encoder.h"
#include "shard/data/encode/sessions_encoder.h"
#include "shard/data/encode/text_encoder.h"
#include "shard/data/encode/words_encoder.h"

namespace {

namespace shard = modelet::shard;

std::unique_ptr<std::streambuf> source(const std::string& text) {
  return std::make_unique<std::stringbuf>(text, std::ios::in);
}

void check(shard::SampleReader& reader) {
  for (shard::Sample sample; reader.next(sample);) {
    if (sample.features.size() != sample.values.size()) __builtin_trap();
    for (size_t i = 0; i < sample.features.size(); ++i)
      if (sample.features[i] >= reader.features() || (i > 0 && sample.features[i - 1] >= sample.features[i]))
        __builtin_trap();
    for (const uint32_t id : sample.labels)
      if (id >= reader.labels()) __builtin_trap();
  }
}

}  // namespace

// The first byte chooses format and options.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const modelet::Encoding kOptions[] = {
      modelet::parse_encoding(
          "[data]\nformat = 'text'\n[text]\nlabel_prefix = '_'\nbuckets = 64\nword_ngrams = 3", "a"),
      modelet::parse_encoding("[data]\nformat = 'text'\n[text]\nlabel_prefix = '_'\nbuckets = "
                              "64\nmin_char = 2\nmax_char = 4\nweight = 'tfidf'",
                              "b"),
      modelet::parse_encoding("[data]\nformat = 'csv'\n[csv]\nlabels = '1'\nlabel_separator = "
                              "'pipe'\ntext = ['2']\n[text]\nbuckets = 64",
                              "c"),
      modelet::parse_encoding("[data]\nformat = 'words'\n[words]\nmin_count = 1\nsubsample = 0.1\nwindow = 2",
                              "d"),
      modelet::parse_encoding(
          "[data]\nformat = 'words'\n[words]\nmin_count = 1\ntask = 'next'\npositions = true", "e"),
      modelet::parse_encoding("[data]\nformat = 'sessions'\n[sessions]\nbuckets = 64", "f")};
  if (size == 0) return 0;
  const modelet::Encoding& options = kOptions[data[0] % std::size(kOptions)];
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (options.format == modelet::DataFormat::kWords) {
      const auto encoder = shard::WordsEncoder::fit(options, shard::WordReader(source(text), "fuzz"), {});
      check(*encoder->open(shard::WordReader(source(text), "fuzz")));
      check(*encoder->open_requests(shard::LineReader(source(text), "fuzz")));
    } else if (options.format == modelet::DataFormat::kSessions) {
      const auto encoder = shard::SessionsEncoder::fit(options, {source(text), "fuzz"}, {});
      check(*encoder->open_training(shard::LineReader(source(text), "fuzz")));
      check(*encoder->open(shard::LineReader(source(text), "fuzz")));
      check(*encoder->open_requests(shard::LineReader(source(text), "fuzz")));
    } else if (options.format == modelet::DataFormat::kCsv) {
      const auto encoder = shard::ColumnsEncoder::fit(options, {source(text), "fuzz"}, {});
      check(*encoder->open(shard::LineReader(source(text), "fuzz")));
    } else {
      const auto encoder = shard::TextEncoder::fit(options, {options.text, {source(text), "fuzz"}}, {});
      check(*encoder->open(shard::LineReader(source(text), "fuzz")));
    }
  } catch (const modelet::Error&) {
  }
  return 0;
}
