// Codecs: how a matrix of floats is encoded for the network. Each codec has a source file of its own. Its
// byte layout is in docs/wire_format.md. codec.cc has the table of all codecs.
//
// A codec is stateless and thread-safe. A codec that rounds stochastically takes its random bits from
// Rounding, so a step that is run again sends the same bytes. The other codecs ignore Rounding. decode()
// gets bytes from outside: it checks them, and throws FormatError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/array/matrix.h"
#include "base/experiment/choices.h"
#include "base/experiment/experiment.h"
#include "base/rng.h"

namespace modelet::comm {

// How values are rounded: to the nearest, or stochastically. Stochastic rounding draws each row from a seed
// of its own, which follows from the row's place in the whole matrix. Dividing the matrix into blocks of
// rows (micro-batches) therefore changes no bit. Blocks of different matrices, or of different columns,
// need different seeds.
struct Rounding {
  uint64_t seed = 0;       // 0: round to the nearest
  uint64_t first_row = 0;  // where the block begins in the whole matrix

  bool to_nearest() const { return seed == 0; }
  uint64_t row_seed(size_t row) const { return mix64(seed ^ mix64(first_row + row)); }
};
inline constexpr Rounding kNearest{};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecKind kind() const = 0;
  std::string_view name() const { return spelling(kind()); }
  virtual uint8_t id() const = 0;  // value on the wire; never reused
  // Upper bound of the encoded size, in bytes.
  virtual size_t max_bytes(size_t rows, size_t cols) const = 0;
  // Writes the encoded matrix to `out` (at least max_bytes long); returns the number of bytes used.
  virtual size_t encode(ConstMatrix values, Rounding rounding, std::span<std::byte> out) const = 0;
  // Decodes all of `bytes` into `values`, whose shape says what is expected. Throws FormatError if the
  // bytes do not fit the shape.
  virtual void decode(std::span<const std::byte> bytes, Matrix values) const = 0;
};

// In the order of the kinds.
std::span<const Codec* const> all_codecs();
// `kind` must not be kSame, which names no codec.
const Codec& codec_of(CodecKind kind);
const Codec* find_codec(uint8_t id);  // null: no codec has that wire id

struct ExchangeCodecs {
  const Codec &activations, &gradients;
};
// The codecs that an experiment names.
ExchangeCodecs exchange_codecs(const Experiment::Exchange& exchange);

}  // namespace modelet::comm
