#include "shard/data/encode/encoder.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "shard/data/encode/columns_encoder.h"
#include "shard/data/encode/sessions_encoder.h"
#include "shard/data/encode/text_encoder.h"
#include "shard/data/encode/words_encoder.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/text_records.h"

namespace modelet::shard {
namespace {

constexpr const char* kEncoderFormat = "modelet-encoder";
constexpr const char* kOffsets = "labels.offsets";
constexpr const char* kNames = "labels.names";

struct EncoderMaker {
  std::unique_ptr<Encoder> (*fit)(const Encoding&, const std::filesystem::path&, const FitProgress&);
  std::unique_ptr<Encoder> (*restore)(const SafetensorsFile&);
};
template <class Of>
constexpr EncoderMaker kMaker = {
    [](const Encoding& options, const std::filesystem::path& text,
       const FitProgress& progress) -> std::unique_ptr<Encoder> { return Of::fit(options, text, progress); },
    [](const SafetensorsFile& state) -> std::unique_ptr<Encoder> { return std::make_unique<Of>(state); },
};
constexpr ByChoice<DataFormat, EncoderMaker> kEncoders({
    {DataFormat::kAuto, {}},  // becomes one of the others when the text is seen
    {DataFormat::kXmc, {}},   // numbers need none
    {DataFormat::kText, kMaker<TextEncoder>},
    {DataFormat::kCsv, kMaker<ColumnsEncoder>},
    {DataFormat::kWords, kMaker<WordsEncoder>},
    {DataFormat::kTable, kMaker<ColumnsEncoder>},
    {DataFormat::kCriteo, kMaker<ColumnsEncoder>},
    {DataFormat::kColumns, kMaker<ColumnsEncoder>},
    {DataFormat::kSessions, kMaker<SessionsEncoder>},
});

std::string metadata_at(const SafetensorsFile& state, const std::string& key) {
  const auto found = state.metadata().find(key);
  return found == state.metadata().end() ? "" : found->second;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string_view> fields_of(std::string_view text, char separator) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

// "3 9 5", and then "0,2 1:0.5 3:2": words that look like this by chance are unlikely.
bool looks_like_xmc(LineReader& lines) {
  std::string_view line;
  if (!lines.next(line)) return false;
  const auto counts = fields_of(line, ' ');
  if (counts.size() != 3 || !std::ranges::all_of(counts, is_number) || !lines.next(line)) return false;
  const auto fields = fields_of(line, ' ');
  const auto is_feature = [](std::string_view field) {
    const size_t colon = field.find(':');
    return colon != std::string_view::npos && is_number(field.substr(0, colon));
  };
  return fields.size() > 1 &&
         (fields[0].empty() || std::ranges::all_of(fields_of(fields[0], ','), is_number)) &&
         std::all_of(fields.begin() + 1, fields.end(), is_feature);
}

}  // namespace

NewEvents Encoder::add_events(LineReader, const KeepEvents&) const {
  throw UsageError("this model has no histories, to which events could be added: it was trained without columns of the types entity and time");
}

std::unique_ptr<SampleReader> Encoder::open_rows(CsvReader) const {
  MODELET_CHECK(false, "rows for a format without columns");
}

void refuse_other_kind(const std::filesystem::path& text, bool encoded) {
  LineReader lines(text);
  std::string_view line;
  if (encoded && looks_like_xmc(lines))
    throw UsageError(text.string() +
                     ": is XMC text (ids and values), where words are expected, as in the training data");
  const std::string prefix = Encoding().text.label_prefix;
  if (!encoded && lines.next(line) && has_label(line, prefix))
    throw UsageError(
        text.string() + ": is labelled words (" + prefix +
        "...), where XMC text (ids and values) is expected: give data like the training data, or "
        "set data.format if this is the training data");
}

DataFormat format_of(const std::filesystem::path& text, const Encoding& options) {
  if (options.format != DataFormat::kAuto) return options.format;
  LineReader lines(text);
  std::string_view line;
  return lines.next(line) && has_label(line, options.text.label_prefix) ? DataFormat::kText
                                                                        : DataFormat::kXmc;
}

std::unique_ptr<Encoder> fit_encoder(const Encoding& options, const std::filesystem::path& text,
                                     const FitProgress& progress) {
  const auto fit = kEncoders[options.format].fit;
  MODELET_CHECK(fit != nullptr, "a format without an encoder");
  return fit(options, text, progress);
}

std::unique_ptr<Encoder> hashed_encoder(const Encoding& options, std::span<const std::string> labels) {
  StringTable names;
  for (const std::string& label : labels) names.insert(label);
  if (options.format == DataFormat::kText) return TextEncoder::hashed(options, LabelNames(std::move(names)));
  if (options.format == DataFormat::kCsv || options.format == DataFormat::kColumns)
    return ColumnsEncoder::hashed(options, LabelNames(std::move(names)));
  throw UsageError(std::string("data.format = \"") + std::string(spelling(options.format)) +
                   "\": only data tells what its features are; words and categories are hashed, in the formats text, csv and columns");
}

std::unique_ptr<Encoder> restore_encoder(std::span<const std::byte> state, const std::string& origin) {
  const SafetensorsFile file(state, origin);
  const auto restore = kEncoders[encoder_options(file).format].restore;
  if (restore == nullptr) throw FormatError(origin + ": damaged: its data.format needs no encoder");
  return restore(file);
}

std::vector<std::string> label_names(std::span<const std::byte> state, const std::string& origin) {
  std::vector<std::string> names;
  if (state.empty()) return names;
  const StringTable labels = encoder_labels(SafetensorsFile(state, origin));
  for (uint32_t id = 0; id < labels.size(); ++id) names.emplace_back(labels.at(id));
  return names;
}

std::vector<std::byte> with_label_names(std::span<const std::byte> state, std::span<const std::string> names) {
  const SafetensorsFile file(state, "an encoder");
  StringTable labels;
  for (const std::string& name : names) labels.insert(name);
  MODELET_CHECK(labels.size() == names.size(), "each label has a name of its own");
  std::vector<Tensor> tensors = label_tensors(labels);
  for (const Tensor& each : file.tensors())
    if (each.name != kOffsets && each.name != kNames) tensors.push_back(each);
  return safetensors_bytes(tensors, file.metadata());
}

std::vector<Tensor> label_tensors(const StringTable& labels) {
  const std::span<const uint8_t> names(reinterpret_cast<const uint8_t*>(labels.strings().data()),
                                       labels.bytes());
  return {tensor(kOffsets, {labels.offsets().size()}, labels.offsets()),
          tensor(kNames, {names.size()}, names)};
}

Metadata encoder_metadata(const Encoding& options) {
  return {{"format", kEncoderFormat}, {"version", kEncoderVersion}, {"options", to_toml(options)}};
}

Encoding encoder_options(const SafetensorsFile& state) {
  const std::string origin = state.path().string();
  if (metadata_at(state, "format") != kEncoderFormat)
    throw FormatError(origin + ": not the state of an encoder of text");
  if (const std::string version = metadata_at(state, "version"); version != kEncoderVersion)
    throw FormatError(origin + ": encoder version " + version + "; this program reads version " +
                      kEncoderVersion);
  try {
    return parse_encoding(metadata_at(state, "options"), state.path());
  } catch (const UsageError& e) {
    throw FormatError(std::string("in the encoder's options: ") + e.what());
  }
}

void require_label_length(std::string_view label, const Fail& fail) {
  if (label.size() > LabelNames::kMaxBytes)
    fail("the label " + quoted(label) + " has " + std::to_string(label.size()) + " bytes, more than " +
         std::to_string(LabelNames::kMaxBytes) + "; is this the right column or prefix?");
}

void require_something(const LabelNames& labels, uint64_t features, uint64_t samples, const Encoding& options,
                       const Fail& fail) {
  if (labels.names().size() == 0)
    fail("the training text has no label in " + std::to_string(samples) +
         " samples; is data.format right, and " +
         (options.format == DataFormat::kColumns ? "the column of type target?" : "text.label_prefix or csv.labels?"));
  if (features == 0)
    fail("no feature occurs in text.min_count = " + std::to_string(options.text.min_count) +
         " training samples; lower it, or check that the text holds words");
}

void require_features(uint64_t features, const SafetensorsFile& state) {
  if (features == 0) throw FormatError(state.path().string() + ": damaged: it has no features");
}

StringTable encoder_labels(const SafetensorsFile& state) {
  const auto names = list_in<uint8_t>(state, kNames);
  return {list_in<uint64_t>(state, kOffsets),
          std::string_view(reinterpret_cast<const char*>(names.data()), names.size()), state.path().string()};
}

}  // namespace modelet::shard
