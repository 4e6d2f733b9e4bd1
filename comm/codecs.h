// The codecs that exist, one file each (codec_NAME.cc), and what they share. Internal to comm/: others use
// codec.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/codec.h"

namespace modelet::comm {

const Codec& codec_none();
const Codec& codec_bf16();
const Codec& codec_int8();
const Codec& codec_int4();
const Codec& codec_topk();

// All formats are little-endian and are written by copying memory.
static_assert(std::endian::native == std::endian::little,
              "Modelet's wire format needs a little-endian machine");

// Throws FormatError unless `got` == `expected` bytes.
void check_encoded_size(std::string_view codec, ConstMatrix shape, size_t got, size_t expected);

// Inner loops run over blocks of this many values: a constant count is what compilers vectorise already at
// -O2.
inline constexpr size_t kLanes = 16;

}  // namespace modelet::comm
