// Every kernel, on every instruction set of this machine, against its plain C++ meaning.
#include "shard/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/aligned.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/kernels/reference.h"
#include "tests/shard/forced_instruction_set.h"

namespace modelet::shard::kernels {
namespace {

using Values = AlignedVector<float>;

Values random_values(size_t n, uint64_t seed, float scale = 1) {
  Rng rng(seed);
  Values values(n);
  for (float& v : values) v = scale * rng.normal();
  return values;
}

void expect_near(const Values& got, const Values& expected, float tolerance, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << " at " << i;
}

class KernelsTest : public testing::TestWithParam<std::string> {
 protected:
  ForcedInstructionSet forced_set_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(InstructionSets, KernelsTest, testing::ValuesIn(available_instruction_sets()),
                         [](const auto& set) { return set.param; });

TEST_P(KernelsTest, InstructionSetIsTheOneAskedFor) {
  EXPECT_EQ(instruction_set(), GetParam());
  EXPECT_THAT(available_instruction_sets(), testing::Contains(GetParam()));
  if (!is_plain(GetParam())) {
    EXPECT_GT(available_instruction_sets().size(), 1) << "the others are there all the same";
  }
}

TEST_P(KernelsTest, GemmOfEveryShapeAndLayout) {
  // Sizes around the tile (6 rows; 1, 2, 4 vectors) and the depth block (128).
  for (const size_t m : {1, 2, 5, 6, 7, 13, 24})
    for (const size_t n : {16, 32, 48, 64, 80, 128})
      for (const size_t k : {0, 1, 3, 127, 128, 130, 300}) {
        const bool transposed = (m + n + k) % 2 == 0, accumulate = (m + k) % 3 == 0;
        const size_t c_row = n + 16;
        const Values a = random_values(std::max<size_t>(m * k, 1), m * 1000 + k);
        const Values b = random_values(std::max<size_t>(k * n, 1), n * 1000 + k);
        Values c = random_values(m * c_row, 7), expected = c;
        Gemm args{.m = m,
                  .n = n,
                  .k = k,
                  .a = a.data(),
                  .a_row = transposed ? 1 : k,
                  .a_col = transposed ? m : 1,
                  .b = b.data(),
                  .b_row = n,
                  .c = expected.data(),
                  .c_row = c_row,
                  .accumulate = accumulate};
        reference::gemm(args);
        args.c = c.data();
        gemm(args);
        expect_near(c, expected, 2e-5f, "gemm");  // also what lies between the rows
        if (accumulate) continue;
        const Values start = random_values(m, 11);
        args.row_start = start.data();
        gemm(args);
        args.c = expected.data();
        reference::gemm(args);
        expect_near(c, expected, 2e-5f, "gemm with a start");
      }
}

TEST_P(KernelsTest, WeightedRowSum) {
  const size_t rows = 50;
  for (const size_t n : {16, 32, 48, 64, 128, 144, 272})
    for (const size_t count : {0, 1, 7, 8, 9, 40}) {
      const size_t stride = n + 16;
      const Values matrix = random_values(rows * stride, n), weights = random_values(count + 1, count),
                   init = random_values(n, 3);
      std::vector<uint32_t> indices;
      Rng rng(count + n);
      for (size_t i = 0; i < count; ++i) indices.push_back(rng.below(rows));
      for (const float* start : {static_cast<const float*>(nullptr), init.data()}) {
        Values out(n), expected(n);
        reference::weighted_row_sum(indices.data(), weights.data(), count, matrix.data(), stride, start,
                                    expected.data(), n);
        weighted_row_sum(indices.data(), weights.data(), count, matrix.data(), stride, start, out.data(), n);
        expect_near(out, expected, 1e-5f, "weighted_row_sum");
      }
    }
}

TEST_P(KernelsTest, VectorOperations) {
  for (const size_t n : {16, 32, 48, 128}) {
    const Values x = random_values(n, 1), y = random_values(n, 2);
    EXPECT_NEAR(dot(x.data(), y.data(), n), reference::dot(x.data(), y.data(), n), 1e-4);
    EXPECT_NEAR(sum_squares(x.data(), n), reference::dot(x.data(), x.data(), n), 1e-4);
    Values ones(n, 1.0f);
    EXPECT_NEAR(sum(x.data(), n), reference::dot(x.data(), ones.data(), n), 1e-4);
    Values added = y, scaled = x, combined = y, positive = x, gradient = y;
    add(x.data(), added.data(), n);
    scale(-2.5f, scaled.data(), n);
    axpy(0.5f, x.data(), combined.data(), n);
    relu(positive.data(), n);
    relu_backward(positive.data(), gradient.data(), n);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_FLOAT_EQ(added[i], x[i] + y[i]);
      EXPECT_FLOAT_EQ(scaled[i], -2.5f * x[i]);
      EXPECT_NEAR(combined[i], y[i] + 0.5f * x[i], 1e-6);
      EXPECT_EQ(positive[i], std::max(x[i], 0.0f));
      EXPECT_EQ(gradient[i], x[i] > 0 ? y[i] : 0.0f);
    }
  }
}

TEST_P(KernelsTest, SoftmaxAndSigmoidOverColumns) {
  for (const size_t rows : {1, 2, 33})
    for (const size_t n : {16, 48}) {
      const size_t stride = n + 16;
      Values logits = random_values(rows * stride, rows + n, 20), expected = logits;
      Values maximum(n), expected_maximum(n), sums(n), expected_sums(n);
      column_max(logits.data(), rows, stride, maximum.data(), n);
      reference::column_max(expected.data(), rows, stride, expected_maximum.data(), n);
      expect_near(maximum, expected_maximum, 0, "maximum");

      Values sigmoid = logits, expected_sigmoid = logits;
      column_exp_sum(logits.data(), rows, stride, maximum.data(), sums.data(), n);
      reference::column_exp_sum(expected.data(), rows, stride, maximum.data(), expected_sums.data(), n);
      expect_near(logits, expected, 1e-6f, "exp");
      expect_near(sums, expected_sums, 1e-5f, "sum of exp");

      column_sigmoid(sigmoid.data(), rows, stride, sums.data(), n);
      reference::column_sigmoid(expected_sigmoid.data(), rows, stride, expected_sums.data(), n);
      expect_near(sigmoid, expected_sigmoid, 1e-6f, "sigmoid");
      expect_near(sums, expected_sums, 1e-5f, "softplus");
    }
}

TEST_P(KernelsTest, ColumnsWithExtremeLogitsStayFinite) {
  Values logits(2 * 16);
  for (size_t c = 0; c < 16; ++c) {
    logits[c] = c % 2 == 0 ? 3e4f : -3e4f;
    logits[16 + c] = 0;
  }
  Values sigmoid = logits, maximum(16), sums(16);
  column_max(logits.data(), 2, 16, maximum.data(), 16);
  column_exp_sum(logits.data(), 2, 16, maximum.data(), sums.data(), 16);
  for (size_t c = 0; c < 16; ++c) EXPECT_FLOAT_EQ(sums[c], 1.0f);
  column_sigmoid(sigmoid.data(), 2, 16, sums.data(), 16);
  for (size_t c = 0; c < 16; ++c) {
    EXPECT_NEAR(sigmoid[c], c % 2 == 0 ? 1.0f : 0.0f, 1e-6);
    EXPECT_NEAR(sums[c], (c % 2 == 0 ? 3e4f : 0.0f) + std::log(2.0f), 1e-2);
  }
}

TEST_P(KernelsTest, ScaleColumnsAndPositionsAbove) {
  const size_t rows = 3, n = 32;
  Values x = random_values(rows * n, 5), expected = x, factor = random_values(n, 6);
  scale_columns(x.data(), rows, n, factor.data(), n);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_FLOAT_EQ(x[i], expected[i] * factor[i % n]);

  Values threshold(n, 0.5f);
  threshold[3] = std::numeric_limits<float>::infinity();
  Values row(n, 0.0f);
  row[3] = 1e30f;
  row[7] = 0.5f;  // equal counts
  row[20] = 0.6f;
  std::vector<uint32_t> positions(n);
  ASSERT_EQ(positions_above(row.data(), threshold.data(), n, positions.data()), 2u);
  EXPECT_EQ(positions[0], 7u);
  EXPECT_EQ(positions[1], 20u);
}

TEST_P(KernelsTest, Optimisers) {
  for (const size_t n : {1, 3, 16, 33, 128}) {
    const Values gradient = random_values(n, 1), weights = random_values(n, 2), first = random_values(n, 3);
    Values second = random_values(n, 4);
    for (float& v : second) v *= v;
    {
      const AdamArgs args{0.9f, 0.999f, 1e-8f, 0.01f, 1.7f};
      Values w = weights, m = first, v = second, ew = weights, em = first, ev = second;
      adam(args, gradient.data(), w.data(), m.data(), v.data(), n);
      reference::adam(args, gradient.data(), ew.data(), em.data(), ev.data(), n);
      expect_near(w, ew, 1e-6f, "adam weights");
      expect_near(m, em, 1e-6f, "adam first");
      expect_near(v, ev, 1e-6f, "adam second");
    }
    {
      Values w = weights, s = second, ew = weights, es = second;
      adagrad(0.1f, 1e-8f, gradient.data(), w.data(), s.data(), n);
      reference::adagrad(0.1f, 1e-8f, gradient.data(), ew.data(), es.data(), n);
      expect_near(w, ew, 1e-6f, "adagrad weights");
      expect_near(s, es, 1e-6f, "adagrad sum");
    }
    {
      Values w = weights, u = first, ew = weights, eu = first;
      sgd_momentum(0.1f, 0.9f, gradient.data(), w.data(), u.data(), n);
      reference::sgd_momentum(0.1f, 0.9f, gradient.data(), ew.data(), eu.data(), n);
      expect_near(w, ew, 1e-6f, "sgd weights");
      expect_near(u, eu, 1e-6f, "sgd velocity");
    }
  }
}

// A build without the vector kernels of its machine would pass all else, slowly.
TEST(InstructionSetTest, TheBestOneHasVectors) {
  EXPECT_FALSE(is_plain(instruction_set()));
#ifdef __aarch64__
  EXPECT_EQ(instruction_set().substr(0, 4), "NEON");
#endif
}

TEST(InstructionSetTest, UnknownNameIsAnError) { EXPECT_THROW(use_instruction_set("MMX"), UsageError); }

}  // namespace
}  // namespace modelet::shard::kernels
