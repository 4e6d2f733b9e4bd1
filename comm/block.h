// Matrices of a message: what goes out, and where what comes in goes.
#pragma once

#include "base/matrix.h"
#include "comm/codec.h"

namespace modelet::comm {

// A matrix to send. `codec` must outlive the call (codecs are registered for ever).
struct OutBlock {
  const Codec* codec = nullptr;
  ConstMatrix values;
  Rounding rounding;  // to the nearest
};

// Where a received matrix goes. Its shape must be what the sender sent, else FormatError.
using InBlock = Matrix;

}  // namespace modelet::comm
