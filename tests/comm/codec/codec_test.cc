#include "comm/codec/codec.h"

// simd_targets.h says what the codecs were compiled for, and comes before Highway:
// clang-format off
#include "base/array/simd_targets.h"
#include <hwy/highway.h>
// clang-format on
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::comm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr CodecKind kStochastic[] = {CodecKind::kInt8, CodecKind::kInt4};

std::vector<std::byte> encode(const Codec& codec, ConstMatrix values, Rounding rounding = {1}) {
  std::vector<std::byte> bytes(codec.max_bytes(values.rows, values.cols));
  bytes.resize(codec.encode(values, rounding, bytes));
  return bytes;
}

std::vector<float> round_trip(const Codec& codec, const std::vector<float>& values, size_t rows,
                              Rounding rounding = {1}) {
  const size_t cols = values.size() / rows;
  std::vector<float> decoded(values.size(), -77);
  codec.decode(encode(codec, {values.data(), rows, cols, cols}, rounding),
               {decoded.data(), rows, cols, cols});
  return decoded;
}

std::vector<float> normal_values(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = rng.normal() * std::ldexp(1.0f, static_cast<int>(rng.below(8)));
  return values;
}

TEST(Codec, AreFoundByKindAndId) {
  std::vector<const Codec*> found;
  for (const CodecKind kind : all_values<CodecKind>()) {
    if (kind == CodecKind::kSame) {
      EXPECT_DEATH(codec_of(kind), "names no codec");
      continue;
    }
    found.push_back(&codec_of(kind));
    EXPECT_EQ(found.back()->kind(), kind);
    EXPECT_EQ(find_codec(found.back()->id()), found.back()) << spelling(kind);
  }
  EXPECT_TRUE(std::ranges::equal(all_codecs(), found));
  EXPECT_EQ(find_codec(uint8_t{200}), nullptr);
}

TEST(Codec, GradientsHaveTheCodecOfActivationsUnlessTheyHaveTheirOwn) {
  const auto named = [](const Experiment::Exchange& exchange) {
    const ExchangeCodecs codecs = exchange_codecs(exchange);
    return std::pair(codecs.activations.kind(), codecs.gradients.kind());
  };
  EXPECT_EQ(named({.codec = CodecKind::kBf16}), std::pair(CodecKind::kBf16, CodecKind::kBf16));
  EXPECT_EQ(named({.codec = CodecKind::kNone, .gradient_codec = CodecKind::kInt4}),
            std::pair(CodecKind::kNone, CodecKind::kInt4));
}

TEST(Codec, ErrorBoundHoldsForEveryShapeAndStride) {
  for (const Codec* codec : all_codecs()) {
    const CodecKind kind = codec->kind();
    for (const size_t rows : {0, 1, 3, 17}) {
      for (const size_t cols : {0, 1, 15, 16, 17, 32, 100}) {
        const size_t stride = cols + 5;
        const std::vector<float> values = normal_values(rows * stride, rows * 1000 + cols);
        std::vector<float> decoded(rows * stride, -77);
        const std::vector<std::byte> bytes = encode(*codec, {values.data(), rows, cols, stride});
        codec->decode(bytes, {decoded.data(), rows, cols, stride});
        for (size_t r = 0; r < rows; ++r) {
          float max = 0;
          for (size_t c = 0; c < cols; ++c) max = std::max(max, std::abs(values[r * stride + c]));
          for (size_t c = 0; c < stride; ++c) {
            const float x = values[r * stride + c], y = decoded[r * stride + c];
            if (c >= cols) {
              ASSERT_EQ(y, -77) << "wrote beyond the row";
            } else if (kind == CodecKind::kNone) {
              ASSERT_EQ(x, y);
            } else if (kind == CodecKind::kBf16) {
              ASSERT_LE(std::abs(x - y), std::abs(x) * 0x1p-8f);
            } else {  // within a step, which is rounded up to a bf16
              ASSERT_LE(std::abs(x - y), max / (kind == CodecKind::kInt4 ? 7 : 127) * 1.01f)
                  << rows << " x " << cols;
            }
          }
        }
      }
    }
  }
}

TEST(Codec, EncodingIsAFunctionOfValuesAndSeed) {
  const std::vector<float> values = normal_values(1000, 1);
  const ConstMatrix matrix{values.data(), 10, 100, 100};
  for (const Codec* codec : all_codecs()) EXPECT_EQ(encode(*codec, matrix, {5}), encode(*codec, matrix, {5}));
  for (const CodecKind kind : kStochastic)
    EXPECT_NE(encode(codec_of(kind), matrix, {5}), encode(codec_of(kind), matrix, {6}));
}

TEST(Codec, SpecialValuesSurvive) {
  const std::vector<float> special = {0.0f,       -0.0f, 1.0f,     -1.0f,     kInfinity,
                                      -kInfinity, NAN,   kLargest, -kLargest, 1e-45f};
  const std::vector<float> none = round_trip(codec_of(CodecKind::kNone), special, 2);
  for (size_t i = 0; i < special.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(none[i]), std::bit_cast<uint32_t>(special[i]));

  const std::vector<float> bf16 = round_trip(codec_of(CodecKind::kBf16), special, 2);
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(special[i]));
  EXPECT_TRUE(std::isnan(bf16[6]));
  EXPECT_EQ(bf16[7], kInfinity) << "nearest even: the next bf16 is infinity";
  EXPECT_EQ(bf16[9], 0);
  // A NaN whose rounding would carry into the exponent stays a NaN.
  EXPECT_TRUE(std::isnan(round_trip(codec_of(CodecKind::kBf16), {std::bit_cast<float>(0x7fffffffu)}, 1)[0]));
  EXPECT_TRUE(std::isnan(round_trip(codec_of(CodecKind::kBf16), {std::bit_cast<float>(0x7f800001u)}, 1)[0]));
}

TEST(Bf16, RoundsHalfwayToEven) {
  const Codec& codec = codec_of(CodecKind::kBf16);
  const float even_below = std::bit_cast<float>(0x3f808000u);  // half-way, lower neighbour 0x3f80 even
  const float odd_below = std::bit_cast<float>(0x3f818000u);   // half-way, upper neighbour 0x3f82 even
  EXPECT_EQ(std::bit_cast<uint32_t>(round_trip(codec, {even_below}, 1)[0]), 0x3f800000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(round_trip(codec, {odd_below}, 1)[0]), 0x3f820000u);
}

// Calls `body` once for each instruction set that this machine has.
template <class Body>
void on_all_instruction_sets(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

struct IntCodec : ::testing::TestWithParam<std::pair<CodecKind, int>> {
  const Codec& codec() const { return codec_of(GetParam().first); }
  int bits() const { return GetParam().second; }
  int largest() const { return (1 << (bits() - 1)) - 1; }     // largest number in a row with negative values
  int largest_positive() const { return (1 << bits()) - 1; }  // in a row without
};
INSTANTIATE_TEST_SUITE_P(, IntCodec,
                         ::testing::Values(std::pair{CodecKind::kInt8, 8}, std::pair{CodecKind::kInt4, 4}),
                         [](const auto& entry) { return std::string(spelling(entry.param.first)); });

TEST_P(IntCodec, RowsOfZerosAndExtremes) {
  EXPECT_EQ(round_trip(codec(), std::vector<float>(40, 0.0f), 2), std::vector<float>(40, 0.0f));
  EXPECT_EQ(round_trip(codec(), {1e-45f, -1e-40f, 1e-38f}, 1), std::vector<float>(3, 0.0f))
      << "too small to have a step";
  const std::vector<float> extreme = round_trip(codec(), {kLargest, -kLargest, 0}, 1, kNearest);
  // The largest number is cut off, so that one step more below zero would be finite too; the step is a bf16.
  const double cut = largest() / (largest() + 1.0);
  EXPECT_NEAR(extreme[0] / kLargest, cut, 0.01);
  EXPECT_NEAR(extreme[1] / kLargest, -cut, 0.01);
  EXPECT_EQ(extreme[2], 0);
}

// Tries any step and any numbers that a peer may claim, also those that no encoder writes.
TEST_P(IntCodec, DecodesNothingThatIsNotFinite) {
  const std::vector<std::byte> good = encode(codec(), {std::vector<float>{1, -1}.data(), 1, 2, 2});
  size_t accepted = 0;
  for (unsigned step = 0; step < 0x10000; ++step)
    for (const uint8_t numbers : {0x80, 0x88, 0x7f, 0xff}) {
      std::vector<std::byte> bytes = good;
      if ((step & 0x7fff) == 0) bytes.resize(3);  // a row of zeros has no numbers
      bytes[1] = static_cast<std::byte>(step & 0xff);
      bytes[2] = static_cast<std::byte>(step >> 8);
      std::fill(bytes.begin() + 3, bytes.end(), std::byte{numbers});
      std::array<float, 2> decoded{};
      try {
        codec().decode(bytes, {decoded.data(), 1, 2, 2});
      } catch (const FormatError&) {
        continue;
      }
      ++accepted;
      ASSERT_TRUE(std::isfinite(decoded[0]) && std::isfinite(decoded[1])) << step << ", " << int{numbers};
    }
  EXPECT_GT(accepted, 2u * 0x10000);
}

// A matrix that is cut into blocks of rows is rounded as if it were one block.
TEST(Codec, RoundingDoesNotDependOnTheCutIntoBlocksOfRows) {
  const size_t rows = 20, cols = 37;
  const std::vector<float> values = normal_values(rows * cols, 8);
  for (const CodecKind kind : kStochastic) {
    const Codec& codec = codec_of(kind);
    const std::vector<float> whole = round_trip(codec, values, rows, {7, 100});
    std::vector<float> blocks;
    for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 11}, {11, 1}, {12, 8}}) {
      const std::vector<float> block(&values[first * cols], &values[first * cols] + count * cols);
      const std::vector<float> decoded = round_trip(codec, block, count, {7, 100 + first});
      blocks.insert(blocks.end(), decoded.begin(), decoded.end());
    }
    EXPECT_EQ(blocks, whole);
    EXPECT_NE(round_trip(codec, values, rows, {7, 101}), whole);
  }
}

TEST_P(IntCodec, ValuesThatAreWholeStepsAreExactForEverySeed) {
  std::vector<float> both, positive;
  for (int i = -largest(); i <= largest(); ++i) both.push_back(static_cast<float>(i));
  for (int i = 0; i <= largest_positive(); ++i) positive.push_back(static_cast<float>(i));
  for (uint64_t seed = kNearest.seed; seed < 200; ++seed) {
    ASSERT_EQ(round_trip(codec(), both, 1, {seed}), both);
    ASSERT_EQ(round_trip(codec(), positive, 1, {seed}), positive);
  }
}

TEST_P(IntCodec, WithoutASeedRoundsToTheNearest) {
  const float top = static_cast<float>(largest());
  const std::vector<float> values = {top, 1.4f, 1.6f, -2.4f, -2.6f, 0.4f, -0.4f};
  EXPECT_EQ(round_trip(codec(), values, 1, kNearest), (std::vector<float>{top, 1, 2, -2, -3, 0, 0}));
}

// Outputs of ReLU: each row needs one bit for each value, and the numbers of the values that are not zero.
// Tries odd numbers of values, every length, and rows of zeros.
TEST_P(IntCodec, LeavesOutZeros) {
  on_all_instruction_sets([&](const char* target) {
    SCOPED_TRACE(target);
    Rng rng(5);
    for (size_t cols = 1; cols < 200; ++cols) {
      const size_t rows = 5;
      std::vector<float> values(rows * cols);
      for (size_t r = 1; r < rows; ++r)
        for (size_t c = 0; c < cols; ++c)
          if (rng.below(4) == 0) values[r * cols + c] = static_cast<float>(rng.below(15) + 1);
      for (size_t r = 1; r < rows; ++r) values[r * cols + rng.below(static_cast<uint32_t>(cols))] = 15;
      size_t expected = 1 + 2 * rows, dense = 1 + 2 * rows;
      for (size_t r = 1; r < rows; ++r) {
        const auto kept = static_cast<size_t>(cols) -
                          static_cast<size_t>(std::count(&values[r * cols], &values[r * cols] + cols, 0.0f));
        expected += (cols + 7) / 8 + (kept * static_cast<size_t>(bits()) + 7) / 8;
        dense += (cols * static_cast<size_t>(bits()) + 7) / 8;
      }
      const std::vector<std::byte> bytes = encode(codec(), {values.data(), rows, cols, cols}, {9});
      EXPECT_EQ(bytes.size(), std::min(expected, dense)) << cols;
      const float step = bits() == 8 ? 15.0f / 255 : 1;  // 15 / 255 is no bf16
      const std::vector<float> decoded = round_trip(codec(), values, rows, {9});
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(decoded[i], values[i], bits() == 8 ? step * 1.01f : 0) << cols;
    }
  });
}

TEST_P(IntCodec, RefusesWhatIsNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, NAN}) {
    for (const size_t where : {0, 16, 33}) {
      std::vector<float> values(34, 1.0f);
      values[where] = bad;
      try {
        round_trip(codec(), values, 1);
        FAIL() << bad;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("training diverged"));
      }
    }
  }
}

// The mean of the decoded value over many seeds is the value, within 5 standard errors. Tries values in the
// whole range, in a row with negative values and in one without.
TEST_P(IntCodec, StochasticRoundingIsUnbiased) {
  for (const bool negative : {true, false}) {
    const int top = negative ? largest() : largest_positive(), bottom = negative ? -top : 0;
    std::vector<float> values = {static_cast<float>(top)};  // makes a step exactly 1
    for (int i = 0; i < 63; ++i)
      values.push_back(static_cast<float>(bottom) +
                       static_cast<float>(top - bottom) * static_cast<float>(i) / 63 * 0.999f);
    const int trials = 20000;
    std::vector<double> sum(values.size());
    for (int seed = 1; seed <= trials; ++seed) {
      const std::vector<float> decoded = round_trip(codec(), values, 1, {static_cast<uint64_t>(seed)});
      for (size_t i = 0; i < values.size(); ++i) sum[i] += decoded[i];
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double fraction = values[i] - std::floor(values[i]);
      const double standard_error = std::sqrt(fraction * (1 - fraction) / trials);
      EXPECT_NEAR(sum[i] / trials, values[i], 5 * standard_error + 2e-5) << "value " << values[i];
    }
  }
}

// Every instruction set gives the same numbers. Without a fused multiply-add, one value in a thousand may be
// rounded the other way.
TEST_P(IntCodec, AgreesOnAllInstructionSets) {
  const std::vector<float> values = normal_values(100 * 77, 3);
  const auto best = round_trip(codec(), values, 100, {5});
  on_all_instruction_sets([&](const char* target) {
    const auto decoded = round_trip(codec(), values, 100, {5});
    size_t different = 0;
    for (size_t i = 0; i < values.size(); ++i) different += decoded[i] != best[i] ? 1 : 0;
    EXPECT_LE(different, values.size() / 1000) << target;
  });
}

// Neighbours must be rounded independently: the rounding errors of different places are uncorrelated.
TEST_P(IntCodec, RoundingOfNeighboursIsIndependent) {
  const size_t cols = 64, rows = 2000;
  std::vector<float> values(rows * cols, 0.5f);
  for (size_t r = 0; r < rows; ++r) values[r * cols] = static_cast<float>(largest_positive());
  const std::vector<float> decoded = round_trip(codec(), values, rows, {3});
  for (size_t lag : {1, 2, 4, 16, 63}) {
    double product = 0;
    size_t count = 0;
    for (size_t i = 1; i + lag < values.size(); ++i) {
      if (i % cols == 0 || (i + lag) % cols == 0) continue;
      product += (decoded[i] - 0.5) * (decoded[i + lag] - 0.5);
      ++count;
    }
    EXPECT_NEAR(product / static_cast<double>(count), 0, 5 * 0.25 / std::sqrt(static_cast<double>(count)))
        << lag;
  }
}

TEST(Codec, DecodeRefusesWrongSizesAndScales) {
  std::vector<float> values(12);
  const Matrix matrix{values.data(), 3, 4, 4};
  for (const Codec* codec : all_codecs()) {
    std::vector<std::byte> bytes = encode(*codec, matrix);
    for (const int change : {-1, 1}) {
      std::vector<std::byte> wrong = bytes;
      wrong.resize(wrong.size() + static_cast<size_t>(change));
      EXPECT_THROW(codec->decode(wrong, matrix), FormatError) << codec->name();
    }
    EXPECT_THROW(codec->decode({}, matrix), FormatError);
  }
  values.assign(12, 1.0f);
  for (const CodecKind kind : {CodecKind::kInt8, CodecKind::kInt4}) {
    const Codec& codec = codec_of(kind);
    const std::vector<std::byte> good = encode(codec, matrix);
    const auto refuses = [&](size_t at, uint8_t value) {
      std::vector<std::byte> bytes = good;
      bytes[at] = std::byte{value};
      EXPECT_THROW(codec.decode(bytes, matrix), FormatError) << codec.name() << " byte " << at;
    };
    refuses(0, 2);     // layout
    refuses(2, 0x7f);  // a step that is no number, or whose multiples are not
    refuses(2, 0xff);
  }
  // A row that claims a value beyond its columns.
  values = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  std::vector<std::byte> bytes = encode(codec_of(CodecKind::kInt8), {values.data(), 1, 12, 12});
  ASSERT_EQ(bytes.size(), 1u + 2 + 2 + 1);
  bytes[3] = std::byte{0};
  bytes[4] = std::byte{0x10};  // bit 12
  EXPECT_THROW(codec_of(CodecKind::kInt8).decode(bytes, {values.data(), 1, 12, 12}), FormatError);
}

TEST(Codec, DecodersSurviveMutations) {
  Rng rng(11);
  std::vector<float> values = normal_values(2 * 9, 4);
  for (const Codec* codec : all_codecs()) {
    const std::vector<std::byte> good = encode(*codec, {values.data(), 2, 9, 9});
    std::vector<float> decoded(18);
    for (int trial = 0; trial < 150000; ++trial) {
      std::vector<std::byte> bytes = good;
      for (uint32_t edits = 1 + rng.below(4); edits > 0; --edits)
        bytes[rng.below(static_cast<uint32_t>(bytes.size()))] = static_cast<std::byte>(rng.below(256));
      if (rng.below(8) == 0) bytes.resize(rng.below(static_cast<uint32_t>(2 * good.size())));
      try {
        codec->decode(bytes, {decoded.data(), 2, 9, 9});
      } catch (const FormatError&) {
        continue;
      }
      if (codec->kind() == CodecKind::kNone || codec->kind() == CodecKind::kBf16)
        continue;  // these carry infinities
      for (const float value : decoded) ASSERT_TRUE(std::isfinite(value)) << codec->name();
    }
  }
}

}  // namespace
}  // namespace modelet::comm
