// Codecs: how a float matrix travels. Each codec is one file, with its byte layout in docs/wire_format.md;
// codec.cc has the table of them.
//
// A codec is stateless and thread-safe. A codec that rounds stochastically draws its random bits from
// Rounding, so that a retried step sends the same bytes; the others ignore it. decode() gets bytes from
// outside: it checks them and throws FormatError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/array/matrix.h"
#include "base/experiment/experiment.h"
#include "base/rng.h"

namespace modelet::comm {

// How values are rounded: to the nearest, or by chance. If by chance, row r of a block draws from a seed of
// its own that follows from its place in the whole matrix: dividing the matrix into blocks of rows
// (micro-batches) changes no bit. Blocks of different matrices, or of different columns, need different
// seeds.
struct Rounding {
  uint64_t seed = 0;       // 0: to the nearest
  uint64_t first_row = 0;  // of the block, in the whole matrix

  bool to_nearest() const { return seed == 0; }
  uint64_t row_seed(size_t row) const { return mix64(seed ^ mix64(first_row + row)); }
};
inline constexpr Rounding kNearest{};

class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;  // value of the experiment's exchange.codec
  virtual uint8_t id() const = 0;             // value on the wire; never reused
  // Upper bound of the encoded size, in bytes.
  virtual size_t max_bytes(size_t rows, size_t cols) const = 0;
  // Writes the encoded matrix to `out` (at least max_bytes long); returns the number of bytes used.
  virtual size_t encode(ConstMatrix values, Rounding rounding, std::span<std::byte> out) const = 0;
  // Decodes exactly `bytes` into `values`, whose shape says what is expected; throws FormatError if they do
  // not fit.
  virtual void decode(std::span<const std::byte> bytes, Matrix values) const = 0;
};

// nullptr if no codec has that name / wire id.
const Codec* find_codec(std::string_view name);
const Codec* find_codec(uint8_t id);
std::vector<std::string> codec_names();
// The same, but an unknown name is a UsageError that lists the known ones.
const Codec& require_codec(std::string_view name);

// The name that an experiment uses to let the codec be chosen while training
// (node_agent/step/codec_choice.h).
inline constexpr std::string_view kAutomaticCodec = "auto";

struct ExchangeCodecs {
  const Codec *activations, *gradients;
};
// The codec that a plan assumes for an experiment's `name`: kAutomaticCodec counts as int8. Throws as
// require_codec().
ExchangeCodecs exchange_codecs(const Experiment::Exchange& exchange);

}  // namespace modelet::comm
