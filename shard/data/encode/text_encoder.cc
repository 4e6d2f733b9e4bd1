#include "shard/data/encode/text_encoder.h"

#include <utility>

#include "base/error.h"
#include "shard/data/read/line_reader.h"

namespace modelet::shard {

std::unique_ptr<TextEncoder> TextEncoder::fit(const Encoding& options, const std::filesystem::path& text,
                                              const FitProgress& progress) {
  return fit(options, TextRecords(options.text, LineReader(text)), progress);
}

std::unique_ptr<TextEncoder> TextEncoder::fit(const Encoding& options, TextRecords records,
                                              const FitProgress& progress) {
  std::unique_ptr<TextEncoder> encoder(new TextEncoder(options));
  TextRecord record;
  uint64_t samples = 0;
  while (records.next(record)) {
    encoder->words_.count(record.words, ++samples);
    for (const std::string_view label : record.labels) {
      require_label_length(label, [&](const std::string& what) { records.fail(what); });
      encoder->labels_.count(label, samples);
    }
    if (progress && samples % kRecordsBetweenReports == 0) progress(records.bytes(), records.fraction());
  }
  encoder->labels_.finish();
  encoder->words_.finish(samples);
  require_something(encoder->labels_, encoder->words_.features(), samples, options,
                    [&](const std::string& what) { records.fail(what); });
  return encoder;
}

std::unique_ptr<TextEncoder> TextEncoder::hashed(const Encoding& options, LabelNames labels) {
  std::unique_ptr<TextEncoder> encoder(new TextEncoder(options));
  encoder->labels_ = std::move(labels);
  encoder->words_.know_all();
  return encoder;
}

TextEncoder::TextEncoder(const SafetensorsFile& state) : TextEncoder(encoder_options(state)) {
  labels_ = LabelNames(encoder_labels(state));
  words_.restore(state, "");
  require_features(words_.features(), state);
}

std::vector<std::byte> TextEncoder::state() const {
  std::vector<Tensor> tensors = label_tensors(labels_.names());
  words_.add_tensors("", tensors);
  return safetensors_bytes(tensors, encoder_metadata(options_));
}

class TextEncoder::Reader : public SampleReader {
 public:
  Reader(const TextEncoder& encoder, TextRecords records)
      : encoder_(encoder), records_(std::move(records)), words_(encoder.words_) {}

  uint64_t features() const override { return encoder_.words_.features(); }
  uint64_t labels() const override { return encoder_.labels_.names().size(); }
  bool ready() const override { return records_.ready(); }
  uint64_t bytes() const override { return records_.bytes(); }
  double fraction() const override { return records_.fraction(); }
  uint64_t unknown_labels() const override { return unknown_labels_; }

  bool next(Sample& sample) override {
    if (!records_.next(record_)) return false;
    if (++rows_ >= kMaxCount) records_.fail(kTooManySamples);
    features_.clear();
    words_.append(record_.words, features_);
    unknown_labels_ += encoder_.labels_.find(record_.labels, labels_);
    sample = {features_.ids, features_.values, labels_};
    return true;
  }

 private:
  const TextEncoder& encoder_;
  TextRecords records_;
  WordFeatures::Appender words_;
  TextRecord record_;
  uint64_t rows_ = 0, unknown_labels_ = 0;
  FeatureList features_;
  std::vector<uint32_t> labels_;
};

std::unique_ptr<SampleReader> TextEncoder::open(LineReader text) const {
  return std::make_unique<Reader>(*this, TextRecords(options_.text, std::move(text)));
}

}  // namespace modelet::shard
