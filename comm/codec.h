// Codecs: how a float matrix travels. Each is one file (comm/codec_NAME.cc) with its byte layout in
// docs/wire_format.md, and one line in the registry in codec.cc.
//
// A codec is stateless and thread-safe. One that rounds stochastically draws as Rounding says, so that a
// retried step sends the same bytes; one that does not ignores it. decode() gets bytes from outside: it
// checks them and throws FormatError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment.h"
#include "base/matrix.h"
#include "base/rng.h"

namespace modelet::comm {

// How values are rounded: to the nearest, or by chance. Row r of a block then draws from a seed of its own,
// by where it lies in the whole matrix: cutting that into blocks of rows (micro-batches) changes no bit.
// Blocks of different matrices, or columns, need different seeds.
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
  // Fills `values` (its shape says what is expected) from exactly `bytes`; throws FormatError if they do not
  // fit.
  virtual void decode(std::span<const std::byte> bytes, Matrix values) const = 0;
};

// nullptr if there is none of that name / wire id.
const Codec* find_codec(std::string_view name);
const Codec* find_codec(uint8_t id);
std::vector<std::string> codec_names();
// As find_codec(name), but an unknown name is a UsageError that lists the known ones.
const Codec& require_codec(std::string_view name);

// In an experiment: the codec is chosen while training (node_agent/codec_choice.h).
inline constexpr std::string_view kAutomaticCodec = "auto";

struct ExchangeCodecs {
  const Codec *activations, *gradients;
};
// What an experiment asks for, as plans take it: kAutomaticCodec counts as int8. UsageError as require_codec.
ExchangeCodecs exchange_codecs(const Experiment::Exchange& exchange);

}  // namespace modelet::comm
