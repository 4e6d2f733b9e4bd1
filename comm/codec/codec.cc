#include "comm/codec/codec.h"

#include <spdlog/fmt/fmt.h>

#include <vector>

#include "base/error.h"
#include "comm/codec/codecs.h"

namespace modelet::comm {

// Defined in each codec's own file.
const Codec& codec_none();
const Codec& codec_bf16();
const Codec& codec_int8();
const Codec& codec_int4();

namespace {

using GetCodec = const Codec& (*)();
constexpr ByChoice<CodecKind, GetCodec> kCodecs({
    {CodecKind::kNone, codec_none},
    {CodecKind::kBf16, codec_bf16},
    {CodecKind::kInt8, codec_int8},
    {CodecKind::kInt4, codec_int4},
    {CodecKind::kSame, nullptr},
});

}  // namespace

std::span<const Codec* const> all_codecs() {
  static const std::vector<const Codec*> all = [] {
    std::vector<const Codec*> codecs;
    for (const CodecKind kind : all_values<CodecKind>())
      if (kCodecs[kind] != nullptr) codecs.push_back(&kCodecs[kind]());
    return codecs;
  }();
  return all;
}

const Codec& codec_of(CodecKind kind) {
  MODELET_CHECK(kCodecs[kind] != nullptr, "same names no codec");
  return kCodecs[kind]();
}

const Codec* find_codec(uint8_t id) {
  for (const Codec* codec : all_codecs())
    if (codec->id() == id) return codec;
  return nullptr;
}

ExchangeCodecs exchange_codecs(const Experiment::Exchange& exchange) {
  return {codec_of(exchange.codec), codec_of(gradient_codec(exchange))};
}

void check_encoded_size(std::string_view codec, ConstMatrix shape, size_t got, size_t expected) {
  if (got != expected)
    throw FormatError(fmt::format("{}: {} bytes for a {} x {} matrix, expected {}", codec, got, shape.rows,
                                  shape.cols, expected));
}

}  // namespace modelet::comm
