#include "shard/data/encoder.h"

#include "base/error.h"
#include "shard/data/line_reader.h"
#include "shard/data/table_encoder.h"
#include "shard/data/text_encoder.h"
#include "shard/data/text_records.h"
#include "shard/data/words_encoder.h"

namespace modelet::shard {
namespace {

constexpr const char* kEncoderFormat = "modelet-encoder";
constexpr const char* kOffsets = "labels.offsets";
constexpr const char* kNames = "labels.names";

std::string metadata_at(const SafetensorsFile& state, const std::string& key) {
  const auto found = state.metadata().find(key);
  return found == state.metadata().end() ? "" : found->second;
}

}  // namespace

DataFormat format_of(const std::filesystem::path& text, const Experiment& options) {
  if (options.data.format != DataFormat::kAuto) return options.data.format;
  LineReader lines(text);
  std::string_view line;
  return lines.next(line) && has_label(line, options.text.label_prefix) ? DataFormat::kText
                                                                        : DataFormat::kXmc;
}

std::unique_ptr<Encoder> fit_encoder(const Experiment& options, const std::filesystem::path& text,
                                     const FitProgress& progress) {
  if (options.data.format == DataFormat::kWords) return WordsEncoder::fit(options, text, progress);
  if (options.data.format == DataFormat::kTable || options.data.format == DataFormat::kCriteo)
    return TableEncoder::fit(options, text, progress);
  return TextEncoder::fit(options, text, progress);
}

std::unique_ptr<Encoder> restore_encoder(std::span<const std::byte> state, const std::string& origin) {
  const SafetensorsFile file(state, origin);
  switch (encoder_options(file).data.format) {
    case DataFormat::kText:
    case DataFormat::kCsv:
      return std::make_unique<TextEncoder>(file);
    case DataFormat::kWords:
      return std::make_unique<WordsEncoder>(file);
    case DataFormat::kTable:
    case DataFormat::kCriteo:
      return std::make_unique<TableEncoder>(file);
    case DataFormat::kAuto:
    case DataFormat::kXmc:
      break;
  }
  throw FormatError(origin + ": damaged: its data.format needs no encoder");
}

std::vector<std::string> label_names(std::span<const std::byte> state, const std::string& origin) {
  std::vector<std::string> names;
  if (state.empty()) return names;
  const StringTable labels = encoder_labels(SafetensorsFile(state, origin));
  for (uint32_t id = 0; id < labels.size(); ++id) names.emplace_back(labels.at(id));
  return names;
}

std::vector<Tensor> label_tensors(const StringTable& labels) {
  const std::span<const uint8_t> names(reinterpret_cast<const uint8_t*>(labels.strings().data()),
                                       labels.bytes());
  return {tensor(kOffsets, {labels.offsets().size()}, labels.offsets()),
          tensor(kNames, {names.size()}, names)};
}

Metadata encoder_metadata(const Experiment& options) {
  return {{"format", kEncoderFormat}, {"version", kEncoderVersion}, {"options", to_encoding_toml(options)}};
}

Experiment encoder_options(const SafetensorsFile& state) {
  const std::string origin = state.path().string();
  if (metadata_at(state, "format") != kEncoderFormat)
    throw FormatError(origin + ": not the state of an encoder of text");
  if (const std::string version = metadata_at(state, "version"); version != kEncoderVersion)
    throw FormatError(origin + ": encoder version " + version + "; this program reads version " +
                      kEncoderVersion);
  try {
    return parse_encoding_toml(metadata_at(state, "options"), state.path());
  } catch (const UsageError& e) {
    throw FormatError(std::string("in the encoder's options: ") + e.what());
  }
}

StringTable encoder_labels(const SafetensorsFile& state) {
  const auto names = list_in<uint8_t>(state, kNames);
  return {list_in<uint64_t>(state, kOffsets),
          std::string_view(reinterpret_cast<const char*>(names.data()), names.size()), state.path().string()};
}

}  // namespace modelet::shard
