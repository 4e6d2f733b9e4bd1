// A message holds blocks. Each block is a matrix of floats or a few bytes. The types here are views: the
// memory that they point to must outlive the call.
#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "base/array/matrix.h"
#include "comm/codec/codec.h"

namespace modelet::comm {

// A block to send. With a codec it is `values`, which the codec encodes. Without one it is `bytes`,
// unchanged.
struct OutBlock {
  const Codec* codec = nullptr;  // null: `bytes`. Codecs exist for ever
  ConstMatrix values = {};
  Rounding rounding = {};  // default: to the nearest
  std::span<const std::byte> bytes = {};
};

// Where a received block goes. Kind and shape must be those of the block that was sent, else FormatError.
using InBlock = std::variant<Matrix, std::span<std::byte>>;

}  // namespace modelet::comm
