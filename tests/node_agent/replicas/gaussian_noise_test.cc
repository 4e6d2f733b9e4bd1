#include "node_agent/replicas/gaussian_noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace modelet::agent::testing {
namespace {

constexpr size_t kRowWords = 1001, kNoisyRows = 200;

// The noise of rows of a stream.
std::vector<double> drawn_noise(const GaussianNoise& noise, uint64_t stream, double deviation) {
  std::vector<double> all;
  for (size_t row = 0; row < kNoisyRows; ++row) {
    std::vector<uint32_t> words(kRowWords, 0xfffffff0u);  // so that it is added modulo 2^32
    noise.add(stream, row, deviation, words);
    for (const uint32_t word : words) all.push_back(static_cast<int32_t>(word - 0xfffffff0u));
  }
  return all;
}

double mean_product(const std::vector<double>& a, const std::vector<double>& b, size_t shift = 0) {
  double sum = 0;
  for (size_t i = shift; i < a.size(); ++i) sum += a[i] * b[i - shift];
  return sum / static_cast<double>(a.size() - shift);
}

// Of 200,200 normal numbers; bounds are five standard deviations.
TEST(GaussianNoise, IsNormal) {
  const GaussianNoise noise;
  for (const double deviation : {100.0, 3e7}) {
    const std::vector<double> numbers = drawn_noise(noise, 0, deviation);
    const auto count = static_cast<double>(numbers.size());
    double sum = 0, fourth = 0, beyond_two = 0, largest = 0;
    for (const double number : numbers) {
      const double z = number / deviation;
      sum += z;
      fourth += z * z * z * z;
      beyond_two += std::abs(z) > 2 ? 1 : 0;
      largest = std::max(largest, std::abs(z));
    }
    EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(count));
    EXPECT_NEAR(mean_product(numbers, numbers) / (deviation * deviation), 1, 5 * std::sqrt(2 / count));
    EXPECT_NEAR(fourth / count, 3, 5 * std::sqrt(96 / count));
    EXPECT_NEAR(beyond_two / count, 0.0455, 5 * std::sqrt(0.0455 / count));
    EXPECT_GT(largest, 3.5);
    EXPECT_LT(largest, 7);
  }
}

// Neighbours, rows, streams and owners have noise of their own, and each place has its.
TEST(GaussianNoise, IsIndependent) {
  constexpr double kDeviation = 1e6;
  const GaussianNoise noise, other_owner;
  const std::vector<double> first = drawn_noise(noise, 0, kDeviation);
  const double bound = 5 / std::sqrt(static_cast<double>(first.size()));
  const auto correlation = [&](const std::vector<double>& other, size_t shift = 0) {
    return mean_product(first, other, shift) / (kDeviation * kDeviation);
  };
  for (const size_t shift : {size_t{1}, size_t{2}, kRowWords}) EXPECT_NEAR(correlation(first, shift), 0, bound);
  EXPECT_NEAR(correlation(drawn_noise(noise, 1, kDeviation)), 0, bound);
  EXPECT_NEAR(correlation(drawn_noise(other_owner, 0, kDeviation)), 0, bound);
  EXPECT_EQ(drawn_noise(noise, 0, kDeviation), first);
}

}  // namespace
}  // namespace modelet::agent::testing
