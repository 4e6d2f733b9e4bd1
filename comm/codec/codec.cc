#include "comm/codec/codec.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <span>

#include "base/error.h"
#include "comm/codec/codecs.h"

namespace modelet::comm {

// Defined in each codec's own file.
const Codec& codec_none();
const Codec& codec_bf16();
const Codec& codec_int8();
const Codec& codec_int4();
const Codec& codec_topk();

namespace {

std::span<const Codec* const> codecs() {
  static const auto all = std::to_array<const Codec*>(
      {&codec_none(), &codec_bf16(), &codec_int8(), &codec_int4(), &codec_topk()});
  return all;
}

}  // namespace

const Codec* find_codec(std::string_view name) {
  for (const Codec* codec : codecs())
    if (codec->name() == name) return codec;
  return nullptr;
}

const Codec* find_codec(uint8_t id) {
  for (const Codec* codec : codecs())
    if (codec->id() == id) return codec;
  return nullptr;
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const Codec* codec : codecs()) names.emplace_back(codec->name());
  return names;
}

const Codec& require_codec(std::string_view name) {
  if (const Codec* codec = find_codec(name)) return *codec;
  std::string known;
  for (const std::string& codec : codec_names()) known += (known.empty() ? "" : ", ") + codec;
  throw UsageError(
      fmt::format("unknown codec \"{}\"; known: {}, and {} in an experiment", name, known, kAutomaticCodec));
}

ExchangeCodecs exchange_codecs(const Experiment::Exchange& exchange) {
  const auto codec = [](std::string_view name) {
    return name == kAutomaticCodec ? &codec_int8() : &require_codec(name);
  };
  return {codec(exchange.codec),
          codec(exchange.gradient_codec == "same" ? exchange.codec : exchange.gradient_codec)};
}

void check_encoded_size(std::string_view codec, ConstMatrix shape, size_t got, size_t expected) {
  if (got != expected)
    throw FormatError(fmt::format("{}: {} bytes for a {} x {} matrix, expected {}", codec, got, shape.rows,
                                  shape.cols, expected));
}

}  // namespace modelet::comm
