#include "shard/data/store/query_encoder.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "shard/data/read/xmc_reader.h"
#include "shard/data/store/prepared.h"

namespace modelet::shard {
namespace {

// The samples of another reader, normalised.
class NormalisedReader : public SampleReader {
 public:
  NormalisedReader(std::unique_ptr<SampleReader> reader, Normalize normalize)
      : reader_(std::move(reader)), normalize_(normalize) {}

  uint64_t features() const override { return reader_->features(); }
  uint64_t labels() const override { return reader_->labels(); }
  bool ready() const override { return reader_->ready(); }
  uint64_t bytes() const override { return reader_->bytes(); }
  double fraction() const override { return reader_->fraction(); }
  uint64_t unknown_labels() const override { return reader_->unknown_labels(); }

  bool next(Sample& sample) override {
    if (!reader_->next(sample)) return false;
    if (const float scale = scale_of(sample, normalize_); scale != 1) {
      values_.assign(sample.values.begin(), sample.values.end());
      for (float& value : values_) value *= scale;
      sample.values = values_;
    }
    return true;
  }

 private:
  std::unique_ptr<SampleReader> reader_;
  Normalize normalize_;
  std::vector<float> values_;
};

Encoding encoding_of(std::span<const std::byte> state, const std::string& origin) {
  if (!state.empty()) return encoder_options(SafetensorsFile(state, origin));
  Encoding ids;
  ids.format = DataFormat::kXmc;
  return ids;
}

}  // namespace

QueryEncoder::QueryEncoder(std::span<const std::byte> state, const DataShape& shape, Normalize normalize,
                           const std::string& origin)
    : encoder_(state.empty() ? nullptr : restore_encoder(state, origin)),
      encoding_(encoding_of(state, origin)),
      columns_(encoding_),
      features_(shape.features),
      labels_(shape.labels),
      normalize_(normalize) {}

QueryEncoder::~QueryEncoder() = default;
QueryEncoder::QueryEncoder(QueryEncoder&&) noexcept = default;

std::unique_ptr<SampleReader> QueryEncoder::open(LineReader text) const {
  if (!encoder_) return open_ids(std::move(text));
  return std::make_unique<NormalisedReader>(encoder_->open(std::move(text)), normalize_);
}

std::unique_ptr<SampleReader> QueryEncoder::open_requests(LineReader text) const {
  if (!encoder_) return open_ids(std::move(text));
  return std::make_unique<NormalisedReader>(encoder_->open_requests(std::move(text)), normalize_);
}

std::unique_ptr<SampleReader> QueryEncoder::open_texts(std::vector<std::string> texts,
                                                       const std::string& name) const {
  if (!columns_.names().empty()) {
    std::vector<Row> rows;
    for (std::string& text : texts) rows.push_back(columns_.row_of(std::move(text), name));
    return open_rows(std::move(rows), name);
  }
  std::string lines;
  for (std::string& text : texts) {
    std::ranges::replace_if(
        text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
    lines.append(text).push_back('\n');
  }
  return open_requests(LineReader::of_texts(std::move(lines), name));
}

std::unique_ptr<SampleReader> QueryEncoder::open_rows(std::vector<Row> rows, const std::string& name) const {
  const size_t most = columns_.names().size() + (columns_.takes_histories() ? 1 : 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() != most)
      columns_.require_whole(rows[i].size(), rows.size() > 1 ? name + "[" + std::to_string(i) + "]" : name);
    rows[i].resize(most);
  }
  return std::make_unique<NormalisedReader>(encoder_->open_rows(CsvReader(std::move(rows), name)),
                                            normalize_);
}

NewEvents QueryEncoder::add_events(LineReader text, const KeepEvents& keep) const {
  if (!encoder_) throw UsageError("this model reads ids, and has no histories, to which events could be added");
  return encoder_->add_events(std::move(text), keep);
}

std::string QueryEncoder::events() const { return encoder_ ? encoder_->events() : std::string(); }

std::unique_ptr<SampleReader> QueryEncoder::open_ids(LineReader text) const {
  return std::make_unique<NormalisedReader>(std::make_unique<XmcReader>(std::move(text), features_, labels_),
                                            normalize_);
}

}  // namespace modelet::shard
