// What a message holds: blocks, each of which is a matrix of floats or a few bytes. Views: what they point to
// must outlive the call.
#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "base/array/matrix.h"
#include "comm/codec/codec.h"

namespace modelet::comm {

// A block to send: `values` as the codec encodes them, or, without a codec, `bytes` as they are.
struct OutBlock {
  const Codec* codec = nullptr;  // must outlive the call (codecs are registered for ever)
  ConstMatrix values = {};
  Rounding rounding = {};  // to the nearest
  std::span<const std::byte> bytes = {};
};

// Where a received block goes. It must be of the same kind and shape as what the sender sent, else
// FormatError.
using InBlock = std::variant<Matrix, std::span<std::byte>>;

}  // namespace modelet::comm
