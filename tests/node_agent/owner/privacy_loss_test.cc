#include "node_agent/owner/privacy_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace modelet::agent {
namespace {

// The definition with 50 digits (mpmath): the least epsilon for which Phi(m / 2 - e / m) - exp(e) Phi(-m / 2 - e / m) is at
// most delta, m = sqrt(loss). Integrating max(0, p - exp(e) q) over the densities of the two Gaussians numerically gives the
// first four to seven digits as well.
TEST(PrivacyLoss, TheEpsilonOfAGaussianMechanism) {
  EXPECT_NEAR(epsilon_of(1, 1e-5), 4.3771780956812, 1e-7);
  EXPECT_NEAR(epsilon_of(0.01, 1e-5), 0.34066936468433, 1e-8);
  EXPECT_NEAR(epsilon_of(56, 1e-5), 59.125860726745, 1e-6);
  EXPECT_NEAR(epsilon_of(100, 1e-10), 112.84032670423, 1e-6);
  EXPECT_NEAR(epsilon_of(10000, 1e-6), 5474.3655001946, 1e-4);
  // The noise that the analytic Gaussian mechanism of Balle and Wang finds for epsilon = 1, delta = 1e-5.
  EXPECT_NEAR(epsilon_of(privacy_loss(1, 3.730631634), 1e-5), 1, 1e-8);
}

TEST(PrivacyLoss, IsBelowTheBoundOfRenyiDivergences) {
  for (const double noise : {0.5, 1.0, 4.0, 30.0})
    for (const uint64_t rounds : {1u, 10u, 1000u})
      for (const double delta : {1e-9, 1e-5}) {
        // Mironov 2017, propositions 1, 3 and 7, at the best order.
        const double mean = std::sqrt(static_cast<double>(rounds)) / noise;
        const double bound = mean * mean / 2 + mean * std::sqrt(2 * std::log(1 / delta));
        const double epsilon = epsilon_of(privacy_loss(rounds, noise), delta);
        EXPECT_LT(epsilon, bound);
        EXPECT_GT(epsilon, 0.6 * bound);
      }
}

TEST(PrivacyLoss, AddsUp) {
  EXPECT_EQ(privacy_loss(0, 0), 0);
  EXPECT_EQ(privacy_loss(3, 0), std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(privacy_loss(8, 2) + privacy_loss(1, 0.5), 6);
  EXPECT_EQ(epsilon_of(0, 1e-5), 0);
  EXPECT_EQ(epsilon_of(1e-14, 1e-5), 0) << "delta alone is enough";
  EXPECT_EQ(epsilon_of(privacy_loss(1, 0), 1e-5), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isfinite(epsilon_of(1e8, 1e-15)));
}

}  // namespace
}  // namespace modelet::agent
