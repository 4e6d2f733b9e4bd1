// Every kernel, on every instruction set of this machine, compared with its meaning in plain C++.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/array/aligned.h"
#include "base/array/padding.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/ids.h"
#include "shard/kernels/optimizers.h"
#include "shard/kernels/row_sums.h"
#include "shard/kernels/simd/instruction_set.h"
#include "shard/kernels/simd/tiles.h"
#include "shard/kernels/tile_gemm.h"
#include "shard/kernels/windows.h"
#include "tests/shard/kernels/forced_instruction_set.h"
#include "tests/shard/kernels/reference.h"

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

const std::vector<std::string> kInstructionSets = available_instruction_sets();  // while none is forced

class KernelsTest : public ::testing::TestWithParam<std::string> {
 protected:
  ForcedInstructionSet forced_set_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(InstructionSets, KernelsTest, ::testing::ValuesIn(kInstructionSets),
                         [](const auto& set) { return set.param; });

TEST_P(KernelsTest, InstructionSetIsTheOneAskedFor) {
  EXPECT_EQ(instruction_set(), GetParam());
  EXPECT_EQ(dot_pairs_in_use(), GetParam() == "AVX3_BF16");
  EXPECT_EQ(tiles_in_use(), GetParam() == "AMX");
  EXPECT_EQ(available_instruction_sets(), kInstructionSets) << "the others are there all the same";
}

TEST_P(KernelsTest, GemmOfEveryShapeAndLayout) {
  // Sizes around the tile (6 rows; 1, 2, 4 vectors), the depth block (128), and the size from which B is
  // packed (72 rows).
  for (const size_t m : {1, 2, 5, 6, 7, 13, 24, 73})
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
        expect_near(c, expected, 2e-5f, "gemm");  // also the memory between the rows
        if (accumulate) continue;
        const Values start = random_values(m, 11);
        args.row_start = start.data();
        gemm(args);
        args.c = expected.data();
        reference::gemm(args);
        expect_near(c, expected, 2e-5f, "gemm with a start");
      }
}

using Halves = AlignedVector<Bf16>;

Halves halved(const Values& values) {
  Halves halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) halves[i] = nearest_bf16(values[i]);
  return halves;
}

Values widened(const Halves& halves) {
  Values values(halves.size());
  for (size_t i = 0; i < halves.size(); ++i) values[i] = to_float(halves[i]);
  return values;
}

// `multiply`: a product of pairs.
void expect_products_of_rounded_operands(const std::function<void(const PairGemm&)>& multiply) {
  // Sizes around the tiles: 6 and 32 rows, 16 and 32 columns, 16 pairs; and around the blocks along k.
  for (const size_t m : {1, 2, 6, 7, 13, 16, 33, 50, 64})
    for (const size_t n : {16, 32, 48, 64, 128})
      for (const size_t k : {0, 2, 6, 32, 62, 254, 256, 300, 514, 576}) {
        const bool transposed = (m + n + k / 2) % 2 == 0, accumulate = (m + k / 2) % 3 == 0;
        const Values a = widened(halved(random_values(std::max<size_t>(m * k, 1), m * 1000 + k)));
        const Values b = widened(halved(random_values(std::max<size_t>(k * n, 1), n * 1000 + k)));
        Halves a_pairs(a.size()), b_pairs(b.size());
        for (size_t p = 0; p < k / 2; ++p) {
          for (size_t i = 0; i < m; ++i)
            for (const size_t half : {0, 1})
              a_pairs[transposed ? 2 * (p * m + i) + half : i * k + 2 * p + half] =
                  nearest_bf16(a[i * k + 2 * p + half]);
          pack_pairs(b.data() + 2 * p * n, b.data() + (2 * p + 1) * n, b_pairs.data() + 2 * p * n, n);
        }
        Values c = random_values(m * n, 7), expected = c;
        reference::gemm({.m = m,
                         .n = n,
                         .k = k,
                         .a = a.data(),
                         .a_row = k,
                         .a_col = 1,
                         .b = b.data(),
                         .b_row = n,
                         .c = expected.data(),
                         .c_row = n,
                         .accumulate = accumulate});
        multiply(PairGemm{.m = m,
                          .n = n,
                          .k = k / 2,
                          .a = a_pairs.data(),
                          .a_row = transposed ? 1 : k / 2,
                          .a_col = transposed ? m : 1,
                          .b = b_pairs.data(),
                          .b_row = n,
                          .c = c.data(),
                          .c_row = n,
                          .accumulate = accumulate});
        expect_near(c, expected, 2e-5f, "pair gemm");
      }
}

TEST_P(KernelsTest, PairGemmIsTheGemmOfTheRoundedOperands) {
  expect_products_of_rounded_operands([](const PairGemm& g) { gemm(g); });
}

// The loops over tiles, on machines without tiles as well.
TEST(TileGemm, IsTheGemmOfTheRoundedOperandsOnStandInTiles) {
  expect_products_of_rounded_operands(gemm_on_stand_in_tiles);
}

// C has rows of 80 floats, of which the product has 48, and starts with a value for each row.
template <class Multiply>
void expect_rows_that_start(const Multiply& multiply) {
  constexpr size_t kRows = 45, kColumns = 48, kPairs = 21, kRow = 80;
  const Halves a = halved(random_values(kRows * 2 * kPairs, 1)),
               b = halved(random_values(kColumns * 2 * kPairs, 2));
  const Values start = random_values(kRows, 3);
  Values c(kRows * kRow, -7.0f);
  multiply(PairGemm{.m = kRows,
                    .n = kColumns,
                    .k = kPairs,
                    .a = a.data(),
                    .a_row = kPairs,
                    .a_col = 1,
                    .b = b.data(),
                    .b_row = kColumns,
                    .c = c.data(),
                    .c_row = kRow,
                    .row_start = start.data()});
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < kRow; ++j) {
      double sum = j < kColumns ? start[i] : -7;
      for (size_t p = 0; p < kPairs && j < kColumns; ++p)
        for (const size_t half : {0, 1})
          sum +=
              double{to_float(a[2 * (i * kPairs + p) + half])} * to_float(b[2 * (p * kColumns + j) + half]);
      ASSERT_NEAR(c[i * kRow + j], sum, 1e-4) << i << ", " << j;
    }
}

TEST(TileGemm, RowsStartWithTheirValueAndNothingElseIsWritten) {
  expect_rows_that_start(gemm_on_stand_in_tiles);
  if (machine_has_tiles()) expect_rows_that_start(gemm_on_tiles);
}

TEST_P(KernelsTest, PairsOfRows) {
  const size_t n = 48;
  const Values even = random_values(n, 1), odd = random_values(n, 2);
  const Halves even_halves = halved(even), odd_halves = halved(odd);
  Halves packed(2 * n), interleaved(2 * n), narrowed(n);
  for (const bool last : {false, true}) {
    pack_pairs(even.data(), last ? nullptr : odd.data(), packed.data(), n);
    interleave(even_halves.data(), last ? nullptr : odd_halves.data(), interleaved.data(), n);
    for (size_t i = 0; i < n; ++i) {
      const uint16_t second = last ? 0 : odd_halves[i].bits;
      EXPECT_EQ(packed[2 * i].bits, even_halves[i].bits);
      EXPECT_EQ(packed[2 * i + 1].bits, second);
      EXPECT_EQ(interleaved[2 * i].bits, even_halves[i].bits);
      EXPECT_EQ(interleaved[2 * i + 1].bits, second);
    }
  }
  narrow(even.data(), narrowed.data(), n);
  for (size_t i = 0; i < n; ++i) EXPECT_EQ(narrowed[i].bits, even_halves[i].bits);
  Values wide(n);
  widen(even_halves.data(), wide.data(), n);
  EXPECT_EQ(wide, widened(even_halves));
}

TEST_P(KernelsTest, RowsInBf16AreReadAsTheFloatsTheyStandFor) {
  const size_t rows = 20, n = 144;
  const Halves halves = halved(random_values(rows * n, 3));
  const Values floats = widened(halves), x = random_values(n, 4), factors = random_values(7, 5);
  const std::vector<uint32_t> indices = {3, 19, 0, 3, 7, 11, 2};
  Values out(n), expected(n);
  weighted_row_sum(indices.data(), factors.data(), indices.size(), halves.data(), n, halves.data() + n,
                   out.data(), n);
  reference::weighted_row_sum(indices.data(), factors.data(), indices.size(), floats.data(), n,
                              floats.data() + n, expected.data(), n);
  expect_near(out, expected, 1e-5f, "weighted row sum");
  axpy(0.5f, halves.data(), out.data(), n);
  axpy(0.5f, floats.data(), expected.data(), n);
  expect_near(out, expected, 1e-5f, "axpy");
  EXPECT_NEAR(dot(x.data(), halves.data(), n), reference::dot(x.data(), floats.data(), n), 1e-4);
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
        // Indices of later sums are only prefetched, not added.
        Values of_first(n);
        std::vector<uint32_t> with_more = indices;
        with_more.insert(with_more.end(), {0, rows - 1, 7});
        weighted_row_sum(with_more.data(), weights.data(), count, matrix.data(), stride, start,
                         of_first.data(), n, with_more.size() - count);
        EXPECT_EQ(of_first, out);
      }
    }
}

TEST_P(KernelsTest, SeveralRowSumsAreThoseOfEach) {
  const size_t rows = 50, count = 40;
  for (const size_t n : {16, 32, 48, 128}) {
    const size_t stride = n + 16;
    const Values matrix = random_values(rows * stride, n), weights = random_values(count, 2);
    std::vector<uint32_t> indices;
    Rng rng(n);
    for (size_t i = 0; i < count; ++i) indices.push_back(rng.below(rows));
    const uint64_t offsets[] = {0, 1, 1, 4, 30, count};
    const size_t sums = std::size(offsets) - 1;
    Values out(sums * n), one(n);
    weighted_row_sums(offsets, sums, indices.data(), weights.data(), matrix.data(), stride, out.data(), n);
    for (size_t s = 0; s < sums; ++s) {
      weighted_row_sum(&indices[offsets[s]], &weights[offsets[s]], offsets[s + 1] - offsets[s], matrix.data(),
                       stride, nullptr, one.data(), n);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), &out[s * n])) << "sum " << s << " of width " << n;
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
    Values added = y, scaled = x, combined = y, positive = x, gradient = y, products = x;
    add_products(x.data(), y.data(), products.data(), n);
    add(x.data(), added.data(), n);
    scale(-2.5f, scaled.data(), n);
    axpy(0.5f, x.data(), combined.data(), n);
    const float factors[] = {2, -0.25f, 3};
    const float* const vectors[] = {x.data(), y.data(), x.data()};
    Values of_three(n);
    linear_combination(factors, vectors, 3, of_three.data(), n);
    relu(positive.data(), n);
    relu_backward(positive.data(), gradient.data(), n);
    for (size_t i = 0; i < n; ++i) {
      EXPECT_FLOAT_EQ(added[i], x[i] + y[i]);
      EXPECT_NEAR(products[i], x[i] + x[i] * y[i], 1e-6 * (1 + std::abs(x[i] * y[i])));
      EXPECT_FLOAT_EQ(scaled[i], -2.5f * x[i]);
      EXPECT_NEAR(combined[i], y[i] + 0.5f * x[i], 1e-6);
      EXPECT_NEAR(of_three[i], 5 * x[i] - 0.25f * y[i], 1e-5);
      EXPECT_EQ(positive[i], std::max(x[i], 0.0f));
      EXPECT_EQ(gradient[i], x[i] > 0 ? y[i] : 0.0f);
    }
  }
}

// Far above the reference, the result is so large that it cannot be overlooked, and never wraps round to a
// small number.
TEST_P(KernelsTest, ExponentialsNeverWrapRound) {
  constexpr size_t n = kVectorFloats;
  const Values reference(n, -3.0f);
  Values sums(n);
  for (float x = -1000; x <= 1000; x += 0.5f) {
    Values logits(n, x - 3);
    column_exp_sum(logits.data(), 1, n, reference.data(), sums.data(), n);
    const double expected = std::exp(std::min(double{x}, double{kLargestExponent}));
    ASSERT_NEAR(logits[0], expected, 1e-5 * expected + 1e-37) << x;
    ASSERT_EQ(sums[n - 1], logits[0]);
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

      std::vector<uint32_t> where(n, 7), expected_where = where;
      Values best(n, 0.5f), expected_best = best;
      column_best(logits.data(), rows, stride, 1000, best.data(), where.data(), n);
      reference::column_best(expected.data(), rows, stride, 1000, expected_best.data(), expected_where.data(),
                             n);
      EXPECT_EQ(where, expected_where);
      expect_near(best, expected_best, 0, "best");

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
  scale_columns(x.data(), rows, n, factor.data(), x.data(), n);
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

TEST_P(KernelsTest, FirstNotFinite) {
  constexpr float kLargest = std::numeric_limits<float>::max(),
                  kSmallest = std::numeric_limits<float>::denorm_min();
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const size_t n : {0, 1, 5, 16, 31, 67}) {
    Values good(n, kLargest);
    for (size_t i = 0; i < n; i += 3) good[i] = i % 2 == 0 ? -0.0f : kSmallest;
    EXPECT_EQ(first_not_finite(good.data(), n), n);
    for (size_t at = 0; at < n; ++at)
      for (const float bad : {nan, -nan, infinity, -infinity}) {
        Values values = good;
        for (size_t i = at; i < n; i += 7) values[i] = bad;
        std::vector<Bf16> halves(n);
        for (size_t i = 0; i < n; ++i)  // the upper half: rounding would make infinity of the largest float
          halves[i].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
        EXPECT_EQ(first_not_finite(values.data(), n), at);
        EXPECT_EQ(first_not_finite(halves.data(), n), at);
      }
  }
}

TEST_P(KernelsTest, IdsByValuesOfAnyKind) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {kNan, -kNan, -kInfinity, -3e38f, -1, -0.0f, 0, 1e-45f, 1, 3e38f, kInfinity};
  Rng rng(1);
  std::vector<float> of(1000);
  for (float& value : of) value = values[rng.below(std::size(values))];
  std::vector<uint32_t> order(of.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](uint32_t a, uint32_t b) { return comes_before(of[a], a, of[b], b); };
  std::sort(order.begin(), order.end(), before);
  for (size_t i = 1; i < order.size(); ++i) {
    const float x = of[order[i - 1]], y = of[order[i]];
    EXPECT_TRUE(before(order[i - 1], order[i]) && !before(order[i], order[i - 1]));
    EXPECT_TRUE(std::isnan(y) || x <= y) << x << " " << y;
  }
}

// Windows of one to several vectors, few different ids, places without a word, and lines of any length.
TEST_P(KernelsTest, WindowSets) {
  Rng rng(3);
  for (const size_t before : {0, 1, 5, 7, 8, 30, 100})
    for (const size_t after : {size_t{0}, before})
      for (const size_t count : {1, 2, 57}) {
        std::vector<uint32_t> ids(before + count + after);
        const uint32_t different = 1 + rng.below(60);
        for (uint32_t& id : ids) id = rng.below(9) == 0 ? kNoId : rng.below(different);
        std::vector<uint32_t> expected(count * (before + after) + kVectorFloats), sets = expected;
        std::vector<uint32_t> expected_sizes(count), sizes(count, 7);
        reference::window_sets(ids.data(), count, before, after, expected.data(), expected_sizes.data());
        window_sets(ids.data(), count, before, after, sets.data(), sizes.data());
        ASSERT_EQ(sizes, expected_sizes) << before << " " << after << " " << count;
        const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        ASSERT_TRUE(std::equal(sets.begin(), sets.begin() + static_cast<ptrdiff_t>(all), expected.begin()))
            << before << " " << after << " " << count;
      }
}

// Sets that are empty, sparse, dense or full. Lists of any length, with the ranks in another place or in the
// same.
TEST_P(KernelsTest, MemberRanks) {
  Rng rng(5);
  for (const uint32_t share : {0, 1, 50, 99, 100})
    for (const size_t count : {0, 1, 7, 8, 9, 16, 31, 200}) {
      std::vector<uint32_t> blocks(2 * 100);
      const auto numbers_end = static_cast<uint32_t>(blocks.size() / 2 * kRankBlock);
      std::vector<uint32_t> members;
      for (uint32_t number = 0; number < numbers_end; ++number) {
        const uint32_t block = number / kRankBlock;
        if (number % kRankBlock == 0) blocks[2 * block + 1] = static_cast<uint32_t>(members.size());
        if (rng.below(100) >= share) continue;
        blocks[2 * block] |= 1u << number % kRankBlock;
        members.push_back(number);
      }
      std::vector<uint32_t> numbers(count), expected;
      for (uint32_t& number : numbers) {
        number = rng.below(numbers_end);
        const auto found = std::ranges::lower_bound(members, number);
        if (found != members.end() && *found == number)
          expected.push_back(static_cast<uint32_t>(found - members.begin()));
      }
      numbers.resize(count + kVectorFloats, UINT32_MAX);
      std::vector<uint32_t> ranks(numbers.size());
      ranks.resize(member_ranks(blocks.data(), numbers.data(), count, ranks.data()));
      EXPECT_EQ(ranks, expected) << share << " " << count;
      numbers.resize(member_ranks(blocks.data(), numbers.data(), count, numbers.data()));
      EXPECT_EQ(numbers, expected) << share << " " << count << " in place";
    }
}

// Any number of vectors, full or not. The ids are spread, repeated, or as large as allowed.
TEST_P(KernelsTest, SortIds) {
  Rng rng(6);
  std::vector<size_t> counts(400);
  std::iota(counts.begin(), counts.end(), size_t{0});
  counts.insert(counts.end(), {1000, 1024, 5003});
  for (const size_t count : counts)
    for (const uint32_t bound : {1u, 10u, 1u << 31}) {
      std::vector<uint32_t> ids(count);
      for (uint32_t& id : ids) id = bound == 10 ? UINT32_MAX - rng.below(bound) : rng.below(bound);
      std::vector<uint32_t> expected = ids;
      std::ranges::sort(expected);
      ids.resize(count + kVectorFloats);
      sort_ids(ids.data(), count);
      ids.resize(count);
      ASSERT_EQ(ids, expected) << count << " " << bound;
    }
}

// The updates of rows that lie apart in `values`: each row with its vectors and its gradient.
template <class Vector, class T = typename Vector::value_type>
std::vector<RowUpdate<T>> row_updates(Vector& values, RowLayout layout, const Values& gradients) {
  std::vector<RowUpdate<T>> rows;
  const size_t stride = values.size() / 3;
  for (const size_t r : {2, 0, 1})
    rows.push_back({&gradients[r * layout.n], &values[r * stride], 0.01f * static_cast<float>(r + 1),
                    1.7f / static_cast<float>(r + 1), static_cast<uint32_t>(12345 * r),
                    r == 0 ? values.data() : nullptr});
  return rows;
}

TEST_P(KernelsTest, Optimisers) {
  for (const size_t n : {1, 3, 16, 33, 128}) {
    const RowLayout layout{n, n + 5};
    const Values gradients = random_values(3 * n, 1);
    Values start = random_values(3 * (3 * layout.vector + 7), 2);
    for (float& v : start) v *= v;  // sums of squares
    const auto compare = [&](const auto& update, const auto& expected_update, const char* what) {
      Values values = start, expected = start;
      update(std::span<const RowUpdate<float>>(row_updates(values, layout, gradients)));
      expected_update(std::span<const RowUpdate<float>>(row_updates(expected, layout, gradients)));
      expect_near(values, expected, 1e-6f, what);
      EXPECT_NE(values, start);
    };
    const AdamArgs adam_args{0.9f, 0.999f, 1e-8f};
    compare([&](auto rows) { adam(adam_args, rows, layout); },
            [&](auto rows) { reference::adam(adam_args, rows, layout); }, "adam");
    compare(
        [&](auto rows) {
          rmsprop({0.999f, 1e-8f}, rows, layout);
        },
        [&](auto rows) {
          reference::rmsprop({0.999f, 1e-8f}, rows, layout);
        },
        "rmsprop");
    compare([&](auto rows) { adagrad({1e-8f}, rows, layout); },
            [&](auto rows) { reference::adagrad({1e-8f}, rows, layout); }, "adagrad");
    compare([&](auto rows) { sgd_momentum({0.9f}, rows, layout); },
            [&](auto rows) { reference::sgd_momentum({0.9f}, rows, layout); }, "sgd");
  }
}

// Without the vector kernels of its machine, a build would pass all other tests, slowly.
TEST(InstructionSetTest, TheBestOneHasVectors) {
  EXPECT_FALSE(is_plain(instruction_set()));
#ifdef __aarch64__
  EXPECT_EQ(instruction_set().substr(0, 4), "NEON");
#endif
}

// Each update is a hundredth of the distance between two neighbouring bf16 numbers. Rounding to the nearest
// would lose all updates; stochastic rounding loses none on average.
TEST_P(KernelsTest, SmallUpdatesOfBf16Add) {
  const size_t n = 1024, steps = 1000;
  const Values gradient(n, -1.0f), small(n, std::sqrt(1.0f / 12800));
  Halves momentum_row(2 * n), adagrad_row(2 * n);  // weights, velocity; weights, squares
  std::fill_n(momentum_row.begin(), n, nearest_bf16(1.0f));
  std::fill(adagrad_row.begin() + n, adagrad_row.end(), nearest_bf16(1.0f));
  for (uint32_t step = 0; step < steps; ++step) {
    const RowUpdate<Bf16> move{gradient.data(), momentum_row.data(), 1.0f / 12800, 1, step * 7919};
    sgd_momentum({.momentum = 0}, std::span(&move, 1), {n, n});
    const RowUpdate<Bf16> add{small.data(), adagrad_row.data(), 0, 1, step * 7919};
    adagrad({.epsilon = 1}, std::span(&add, 1), {n, n});
  }
  double mean_weight = 0, mean_square = 0;
  for (size_t i = 0; i < n; ++i) {
    mean_weight += to_float(momentum_row[i]) / static_cast<double>(n);
    mean_square += to_float(adagrad_row[n + i]) / static_cast<double>(n);
  }
  EXPECT_NEAR(mean_weight, 1 + steps / 12800.0, 2e-3);
  EXPECT_NEAR(mean_square, 1 + steps / 12800.0, 2e-3);
}

// If values lie a fraction above a bf16 number, this fraction of them is rounded up. How one value is rounded
// says nothing about another one: not about its neighbour, with which it shares a random number, nor about
// the next pair or a later vector.
TEST_P(KernelsTest, RoundingByChanceIsFairAndIndependent) {
  const size_t n = 1024, rows = 64;
  for (const float fraction : {0.1f, 0.5f, 0.9f}) {
    const Values gradient(n, -fraction / 128);  // the distance of two neighbours above 1
    std::vector<uint8_t> up;                    // [rows, n]
    for (size_t r = 0; r < rows; ++r) {
      Halves row(2 * n);
      std::fill_n(row.begin(), n, nearest_bf16(1.0f));
      const RowUpdate<Bf16> update{gradient.data(), row.data(), 1, 1, static_cast<uint32_t>(mix64(r))};
      sgd_momentum({.momentum = 0}, std::span(&update, 1), {n, n});
      for (size_t i = 0; i < n; ++i) up.push_back(to_float(row[i]) > 1);
    }
    const double count = static_cast<double>(up.size()), mean = fraction, variance = mean * (1 - mean);
    const double limit = 4 / std::sqrt(count);  // four standard deviations
    EXPECT_NEAR(std::accumulate(up.begin(), up.end(), 0.0) / count, mean, limit * std::sqrt(variance));
    for (const size_t distance : {1, 2, 3, 16, 32, 64, 512}) {
      double covariance = 0;
      for (size_t i = 0; i + distance < up.size(); ++i)
        covariance += (up[i] - mean) * (up[i + distance] - mean) / count;
      EXPECT_NEAR(covariance / variance, 0, limit) << fraction << " " << distance;
    }
  }
}

TEST_P(KernelsTest, AdamOfBf16IsThatOfFloatsButForRounding) {
  for (const size_t n : {16, 48, 128}) {
    const RowLayout layout{n, n};
    const Values gradients = random_values(3 * n, 1);
    Halves rows = halved(random_values(9 * n, 2));
    for (size_t r = 0; r < 3; ++r)
      for (size_t i = 0; i < n; ++i)
        rows[(3 * r + 2) * n + i] = nearest_bf16(0.1f + 0.01f * static_cast<float>(i));
    Values expected = widened(rows);
    const AdamArgs args{0.9f, 0.999f, 1e-8f};
    adam(args, row_updates(rows, layout, gradients), layout);
    reference::adam(args, row_updates(expected, layout, gradients), layout);
    const Values seen = widened(rows);
    for (size_t r = 0; r < 3; ++r) {
      const auto vector = [&](const Values& all, size_t v) {
        const auto begin = all.begin() + static_cast<ptrdiff_t>((3 * r + v) * n);
        return Values(begin, begin + static_cast<ptrdiff_t>(n));
      };
      expect_near(vector(seen, 0), vector(expected, 0), 1.0f / 128, "adam weights");
      expect_near(vector(seen, 1), vector(expected, 1), 1.0f / 256, "adam first");
      expect_near(vector(seen, 2), vector(expected, 2), 1.0f / 128, "adam second");
    }
  }
}

TEST(InstructionSetTest, BothHalvesOfARowOfRandomBitsDependOnThePlaceAndNotOnTheVector) {
  const size_t n = 128;
  const Values gradient(n, 1e-3f);
  std::vector<std::vector<uint16_t>> results;
  for (const std::string& set : available_instruction_sets()) {
    use_instruction_set(set);
    Halves row(2 * n);
    std::fill_n(row.begin(), n, nearest_bf16(1.0f));
    const RowUpdate<Bf16> update{gradient.data(), row.data(), 1, 1, 99};
    sgd_momentum({.momentum = 0}, std::span(&update, 1), {n, n});
    results.emplace_back();
    for (size_t i = 0; i < n; ++i) results.back().push_back(row[i].bits);
  }
  use_instruction_set(available_instruction_sets().front());
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

TEST(InstructionSetTest, UnknownNameIsAnError) { EXPECT_THROW(use_instruction_set("MMX"), UsageError); }

}  // namespace
}  // namespace modelet::shard::kernels
