#include "node_agent/replicas/gaussian_noise.h"

#include <sodium.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/error.h"

namespace modelet::agent {
namespace {

// In (0, 1), never 0.
double unit_interval(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

}  // namespace

GaussianNoise::GaussianNoise() {
  static_assert(sizeof key_ == crypto_stream_chacha20_KEYBYTES);
  MODELET_CHECK(sodium_init() >= 0, "libsodium does not start");
  randombytes_buf(key_.data(), key_.size());
}

GaussianNoise::~GaussianNoise() { sodium_memzero(key_.data(), key_.size()); }

// The stream is the first part of a key of its own, so that no row has to say how many random numbers it takes. Pairs of
// normal numbers: Box, Muller, 1958.
void GaussianNoise::add(uint64_t stream, uint64_t row, double deviation, std::span<uint32_t> words) const {
  constexpr size_t kAtOnce = 64;  // random numbers, and normal ones
  std::array<unsigned char, crypto_stream_chacha20_KEYBYTES> key;
  const std::array<uint64_t, 1> of_key = {stream};
  crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(of_key.data()), sizeof of_key, key_.data(),
                     key_.size());
  std::array<unsigned char, crypto_stream_chacha20_NONCEBYTES> nonce;
  static_assert(sizeof nonce == sizeof row);
  std::memcpy(nonce.data(), &row, sizeof row);
  static constexpr unsigned char kZeros[kAtOnce * sizeof(uint64_t)] = {};
  std::array<uint64_t, kAtOnce> bits;
  std::array<double, kAtOnce> normal;
  constexpr size_t kBlockBytes = 64;
  uint64_t block = 0;
  for (size_t first = 0; first < words.size(); first += kAtOnce, block += sizeof bits / kBlockBytes) {
    crypto_stream_chacha20_xor_ic(reinterpret_cast<unsigned char*>(bits.data()), kZeros, sizeof bits, nonce.data(), block,
                                  key.data());
    for (size_t i = 0; i < kAtOnce; i += 2) {
      const double length = deviation * std::sqrt(-2 * std::log(unit_interval(bits[i])));
      const double angle = 2 * std::numbers::pi * unit_interval(bits[i + 1]);
      normal[i] = length * std::cos(angle);
      normal[i + 1] = length * std::sin(angle);
    }
    const auto piece = words.subspan(first, std::min(kAtOnce, words.size() - first));
    for (size_t i = 0; i < piece.size(); ++i)
      piece[i] += static_cast<uint32_t>(static_cast<uint64_t>(std::llround(normal[i])));
  }
  sodium_memzero(key.data(), key.size());
  sodium_memzero(bits.data(), sizeof bits);
  sodium_memzero(normal.data(), sizeof normal);
}

}  // namespace modelet::agent
