#include "node_agent/owner/privacy_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace modelet::agent {
namespace {

// The logarithm of the probability that a normal number is below -x.
double log_tail(double x) {
  constexpr double kAsymptotic = 25;
  if (x < kAsymptotic) return std::log(0.5 * std::erfc(x / std::numbers::sqrt2));
  const double square = x * x;  // Abramowitz, Stegun, 7.1.23
  return -square / 2 - std::log(x * std::sqrt(2 * std::numbers::pi)) + std::log1p((-1 + 3 / square) / square);
}

double delta_of(double epsilon, double mean) {
  return std::exp(log_tail(epsilon / mean - mean / 2)) - std::exp(epsilon + log_tail(epsilon / mean + mean / 2));
}

}  // namespace

double privacy_loss(uint64_t rounds, double noise) {
  if (rounds == 0) return 0;
  return noise > 0 ? static_cast<double>(rounds) / (noise * noise) : std::numeric_limits<double>::infinity();
}

double epsilon_of(double loss, double delta) {
  constexpr double kMostLoss = 1e8;
  constexpr int kHalvings = 100;
  if (loss <= 0) return 0;
  if (!(loss <= kMostLoss)) return std::numeric_limits<double>::infinity();
  const double mean = std::sqrt(loss);
  if (delta_of(0, mean) <= delta) return 0;
  double low = 0, high = 1;
  while (delta_of(high, mean) > delta) high *= 2;
  for (int i = 0; i < kHalvings && high - low > 1e-10 * high; ++i) {
    const double middle = (low + high) / 2;
    (delta_of(middle, mean) > delta ? low : high) = middle;
  }
  return high;
}

}  // namespace modelet::agent
