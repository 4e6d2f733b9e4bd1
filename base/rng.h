// Random numbers. Every random choice in Modelet is a pure function of the experiment's seed and of the place
// where it is made (layer, row, step, ...), never of thread, node or time. This makes runs repeatable and
// independent of placement. Generators are therefore cheap values, created where they are used.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace modelet {

// Bijective 64-bit mixer (the finaliser of SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// SplitMix64 stream. Not thread-safe; copy or create one per use.
class Rng {
 public:
  // Each (seed, key...) has a stream of its own: Rng(seed, {kStreamUniformDraws, modelet, step}).
  explicit constexpr Rng(uint64_t seed, std::initializer_list<uint64_t> keys = {}) : state_(mix64(seed)) {
    for (uint64_t key : keys) *this = stream(key);
  }

  // The stream of one more key: Rng(seed, {a}).stream(b) is Rng(seed, {a, b}).
  constexpr Rng stream(uint64_t key) const {
    Rng further = *this;
    further.state_ = mix64(state_ ^ mix64(key + 0x632be59bd9b4e019ULL));
    return further;
  }

  constexpr uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return mix64(state_);
  }
  // Uniform in [0, bound), bound > 0 (Lemire's multiply-shift; bias below 2^-32 for bounds < 2^32).
  constexpr uint32_t below(uint32_t bound) {
    return static_cast<uint32_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  constexpr float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  // The same with all the bits of a double.
  constexpr double uniform_double() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Standard normal (Box-Muller, one of the pair).
  float normal() {
    const float u = 1.0f - uniform();  // (0, 1]
    const float v = uniform();
    return std::sqrt(-2.0f * std::log(u)) * std::cos(2.0f * std::numbers::pi_v<float> * v);
  }

 private:
  uint64_t state_;
};

// The first key of every stream, so that no two uses share random numbers. Append only: the values are part
// of what a seed means.
enum RngStream : uint64_t {
  kStreamInit = 1,            // {layer, row}
  kStreamBatchOrder = 2,      // {epoch}
  kStreamUniform = 3,         // {layer, modelet, step}; replicas but the first add the place of their first
                              // sample; where each sample draws for itself: {layer, modelet, step, place of
                              // the sample}
  kStreamHash = 4,            // {layer}
  kStreamLabelSpread = 5,     // {}
  kStreamQuantise = 6,        // {step, round, rank, matrix, first column}, then as kStreamUniform
  kStreamSynth = 7,           // {...}
  kStreamTables = 8,          // {layer, modelet}
  kStreamRounding = 9,        // {layer, first row of the modelet}
  kStreamSubsample = 10,      // {position}
  kStreamReservoir = 11,      // {record}
  kStreamValidation = 12,     // {}
  kStreamInputDropout = 13,   // {step, place in the batch}: from here on, places in the batch of all replicas
  kStreamHiddenDropout = 14,  // {step, layer, first column of the modelet, place in the batch}
  kStreamReplicaCodec = 15,   // {step, modelet, first row, replica}
  kStreamReplicaAgreed = 16,  // {step, pass, modelet, row}
  kStreamReplicaOwn = 17,     // {step, modelet, row, replica}
  kStreamLowRank = 18,        // {}
  kStreamClassifiers = 19,    // {neuron}
  kStreamTowers = 20,         // {division}
  kStreamTowerSamples = 21,   // {task}
  kStreamOwners = 22,         // {steps done before the round}
};

}  // namespace modelet
