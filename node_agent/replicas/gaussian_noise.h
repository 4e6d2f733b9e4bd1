// GaussianNoise: what an owner adds to the numbers that it sends, so that their sum tells little of what one owner gave
// (the Gaussian mechanism: Dwork, Roth, "The algorithmic foundations of differential privacy", 2014, appendix A).
//
// The numbers are whole ones already, multiples of a unit, and so is the noise: a normal number, rounded. Rounding a
// normal number plus a whole one is the same as adding the rounded one, so what is sent is a function of a value with
// normal noise, and the digits of floating-point numbers tell nothing (Mironov, CCS 2012). The masks come on top, modulo
// 2^32, and cancel; the noise does not.
//
// The key is random and stays in memory: whoever knew it could subtract the noise. So runs with noise do not repeat.
// Immutable; any thread may use it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace modelet::agent {

class GaussianNoise {
 public:
  GaussianNoise();
  GaussianNoise(const GaussianNoise&) = delete;
  GaussianNoise& operator=(const GaussianNoise&) = delete;
  ~GaussianNoise();

  // Adds noise with this standard deviation, in units, modulo 2^32. A place (stream, row) must not be used twice.
  void add(uint64_t stream, uint64_t row, double deviation, std::span<uint32_t> words) const;

 private:
  std::array<unsigned char, 32> key_;
};

}  // namespace modelet::agent
