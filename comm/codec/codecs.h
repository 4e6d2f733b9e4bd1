// What the codecs' source files share. Internal to comm/codec; other folders use codec.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/codec/codec.h"

namespace modelet::comm {

// All formats are little-endian and are written by copying memory.
static_assert(std::endian::native == std::endian::little,
              "Modelet's wire format needs a little-endian machine");

// Throws FormatError unless `got` == `expected` bytes.
void check_encoded_size(std::string_view codec, ConstMatrix shape, size_t got, size_t expected);

// Inner loops run over blocks of this many values. Compilers vectorise a loop with a constant count even at
// -O2.
inline constexpr size_t kLanes = 16;

}  // namespace modelet::comm
