// Random numbers: fixed for ever (a seed keeps its meaning), separate streams, right distribution.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace modelet {
namespace {

TEST(Rng, KnownValues) {
  // First outputs of SplitMix64 for state 0 (published test vector); mix64 is its output function.
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(mix64(0x9e3779b97f4a7c15ULL), 0x6e789e6aa1b965f4ULL);
}

TEST(Rng, StreamsDoNotShareNumbers) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1})
    for (uint64_t stream = kStreamInit; stream <= kStreamReplicaOwn; ++stream)
      for (uint64_t key = 0; key < 100; ++key) {
        Rng rng(seed, {stream, key});
        for (int i = 0; i < 10; ++i) EXPECT_TRUE(seen.insert(rng.next()).second);
      }
  EXPECT_NE(Rng(1, {1, 2}).next(), Rng(1, {2, 1}).next());
  EXPECT_EQ(Rng(1, {1, 2}).next(), Rng(1, {1, 2}).next());
}

// The small numbers stand for a step, a pass, a modelet, a row or a replica. Whatever they are, no two uses
// of replicas share a stream, and neither do two passes of one step.
TEST(Rng, ReplicasShareNoStream) {
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 4; ++a)
    for (uint64_t b = 0; b < 4; ++b)
      for (uint64_t c = 0; c < 4; ++c)
        for (uint64_t d = 0; d < 4; ++d)
          for (const RngStream use : {kStreamReplicaCodec, kStreamReplicaAgreed, kStreamReplicaOwn})
            EXPECT_TRUE(seen.insert(Rng(1, {use, a, b, c, d}).next()).second);
}

TEST(Rng, BelowIsUniform) {
  Rng rng(5);
  constexpr uint32_t kBound = 7, kDraws = 70000;
  int counts[kBound] = {};
  for (uint32_t i = 0; i < kDraws; ++i) ++counts[rng.below(kBound)];
  double chi_square = 0;
  for (int count : counts) chi_square += (count - 1e4) * (count - 1e4) / 1e4;
  EXPECT_LT(chi_square, 22.5);  // 99.9 % quantile with 6 degrees of freedom; the seed is fixed
}

TEST(Rng, FloatsHaveTheirMoments) {
  Rng rng(6);
  constexpr int kDraws = 200000;
  double uniform_sum = 0, normal_sum = 0, normal_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const float u = rng.uniform(), n = rng.normal();
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    uniform_sum += u;
    normal_sum += n;
    normal_squares += n * n;
  }
  EXPECT_NEAR(uniform_sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(normal_sum / kDraws, 0.0, 0.01);
  EXPECT_NEAR(normal_squares / kDraws, 1.0, 0.02);
}

}  // namespace
}  // namespace modelet
