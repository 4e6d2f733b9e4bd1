#include "comm/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::comm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<std::byte> encode(const Codec& codec, ConstMatrix values, uint64_t seed = 1) {
  std::vector<std::byte> bytes(codec.max_bytes(values.rows, values.cols));
  bytes.resize(codec.encode(values, seed, bytes));
  return bytes;
}

std::vector<float> round_trip(const Codec& codec, const std::vector<float>& values, size_t rows,
                              uint64_t seed = 1) {
  const size_t cols = values.size() / rows;
  std::vector<float> decoded(values.size(), -77);
  codec.decode(encode(codec, {values.data(), rows, cols, cols}, seed), {decoded.data(), rows, cols, cols});
  return decoded;
}

std::vector<float> normal_values(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = rng.normal() * std::ldexp(1.0f, static_cast<int>(rng.below(8)));
  return values;
}

TEST(Codec, RegistryFindsByNameAndId) {
  EXPECT_THAT(codec_names(), ::testing::ElementsAre("none", "bf16", "int8"));
  for (const std::string& name : codec_names()) {
    EXPECT_EQ(require_codec(name).name(), name);
    EXPECT_EQ(find_codec(require_codec(name).id()), find_codec(name));
  }
  EXPECT_EQ(find_codec("zip"), nullptr);
  EXPECT_EQ(find_codec(uint8_t{200}), nullptr);
  try {
    require_codec("zip");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("none, bf16, int8"));
  }
}

TEST(Codec, ErrorBoundHoldsForEveryShapeAndStride) {
  for (const std::string& name : codec_names()) {
    const Codec& codec = require_codec(name);
    for (const size_t rows : {0, 1, 3, 17}) {
      for (const size_t cols : {0, 1, 15, 16, 17, 32, 100}) {
        const size_t stride = cols + 5;
        const std::vector<float> values = normal_values(rows * stride, rows * 1000 + cols);
        std::vector<float> decoded(rows * stride, -77);
        const std::vector<std::byte> bytes = encode(codec, {values.data(), rows, cols, stride});
        codec.decode(bytes, {decoded.data(), rows, cols, stride});
        for (size_t r = 0; r < rows; ++r) {
          float max = 0;
          for (size_t c = 0; c < cols; ++c) max = std::max(max, std::abs(values[r * stride + c]));
          for (size_t c = 0; c < stride; ++c) {
            const float x = values[r * stride + c], y = decoded[r * stride + c];
            if (c >= cols) {
              ASSERT_EQ(y, -77) << "wrote beyond the row";
            } else if (name == "none") {
              ASSERT_EQ(x, y);
            } else if (name == "bf16") {
              ASSERT_LE(std::abs(x - y), std::abs(x) * 0x1p-8f);
            } else {
              ASSERT_LE(std::abs(x - y), max / 127 * 1.0001f) << rows << " x " << cols;
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
  for (const std::string& name : codec_names()) {
    const Codec& codec = require_codec(name);
    EXPECT_EQ(encode(codec, matrix, 5), encode(codec, matrix, 5));
  }
  EXPECT_NE(encode(require_codec("int8"), matrix, 5), encode(require_codec("int8"), matrix, 6));
}

TEST(Codec, SpecialValuesSurvive) {
  const std::vector<float> special = {0.0f,       -0.0f, 1.0f,     -1.0f,     kInfinity,
                                      -kInfinity, NAN,   kLargest, -kLargest, 1e-45f};
  const std::vector<float> none = round_trip(require_codec("none"), special, 2);
  for (size_t i = 0; i < special.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(none[i]), std::bit_cast<uint32_t>(special[i]));

  const std::vector<float> bf16 = round_trip(require_codec("bf16"), special, 2);
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16[i]), std::bit_cast<uint32_t>(special[i]));
  EXPECT_TRUE(std::isnan(bf16[6]));
  EXPECT_EQ(bf16[7], kInfinity) << "nearest even: the next bf16 is infinity";
  EXPECT_EQ(bf16[9], 0);
  // A NaN whose rounding would carry into the exponent stays one.
  EXPECT_TRUE(std::isnan(round_trip(require_codec("bf16"), {std::bit_cast<float>(0x7fffffffu)}, 1)[0]));
  EXPECT_TRUE(std::isnan(round_trip(require_codec("bf16"), {std::bit_cast<float>(0x7f800001u)}, 1)[0]));
}

TEST(Bf16, RoundsHalfwayToEven) {
  const Codec& codec = require_codec("bf16");
  const float even_below = std::bit_cast<float>(0x3f808000u);  // half-way, lower neighbour 0x3f80 even
  const float odd_below = std::bit_cast<float>(0x3f818000u);   // half-way, upper neighbour 0x3f82 even
  EXPECT_EQ(std::bit_cast<uint32_t>(round_trip(codec, {even_below}, 1)[0]), 0x3f800000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(round_trip(codec, {odd_below}, 1)[0]), 0x3f820000u);
}

TEST(Int8, RowsOfZerosAndExtremes) {
  const Codec& codec = require_codec("int8");
  EXPECT_EQ(round_trip(codec, std::vector<float>(40, 0.0f), 2), std::vector<float>(40, 0.0f));
  EXPECT_EQ(round_trip(codec, {1e-45f, -1e-40f, 1e-38f}, 1), std::vector<float>(3, 0.0f))
      << "too small to have a scale";
  const std::vector<float> extreme = round_trip(codec, {kLargest, -kLargest, 0}, 1);
  EXPECT_NEAR(extreme[0] / kLargest, 1, 1e-6);
  EXPECT_NEAR(extreme[1] / kLargest, -1, 1e-6);
  EXPECT_EQ(extreme[2], 0);
}

TEST(Int8, ValuesThatAreWholeStepsAreExactForEverySeed) {
  std::vector<float> values(255);
  for (int i = 0; i < 255; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i - 127);
  for (uint64_t seed = 0; seed < 200; ++seed)
    ASSERT_EQ(round_trip(require_codec("int8"), values, 1, seed), values);
}

TEST(Int8, RefusesWhatIsNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, NAN}) {
    for (const size_t where : {0, 16, 33}) {
      std::vector<float> values(34, 1.0f);
      values[where] = bad;
      try {
        round_trip(require_codec("int8"), values, 1);
        FAIL() << bad;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("training diverged"));
      }
    }
  }
}

// The mean over seeds of the decoded value is the value: within 5 standard errors, for values all over the
// range.
TEST(Int8, StochasticRoundingIsUnbiased) {
  const Codec& codec = require_codec("int8");
  std::vector<float> values = {127};  // makes a step exactly 1
  for (int i = 0; i < 63; ++i) values.push_back(static_cast<float>(i * 4 - 126) + static_cast<float>(i) / 63);
  const int trials = 20000;
  std::vector<double> sum(values.size());
  for (int seed = 0; seed < trials; ++seed) {
    const std::vector<float> decoded = round_trip(codec, values, 1, static_cast<uint64_t>(seed));
    for (size_t i = 0; i < values.size(); ++i) sum[i] += decoded[i];
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const double fraction = values[i] - std::floor(values[i]);
    const double standard_error = std::sqrt(fraction * (1 - fraction) / trials);
    EXPECT_NEAR(sum[i] / trials, values[i], 5 * standard_error + 2e-5) << "value " << values[i];
  }
}

// Neighbours must not be rounded alike: the errors of different places are uncorrelated.
TEST(Int8, RoundingOfNeighboursIsIndependent) {
  const size_t cols = 64, rows = 2000;
  std::vector<float> values(rows * cols, 0.5f);
  for (size_t r = 0; r < rows; ++r) values[r * cols] = 127;
  const std::vector<float> decoded = round_trip(require_codec("int8"), values, rows, 3);
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
  for (const std::string& name : codec_names()) {
    const Codec& codec = require_codec(name);
    std::vector<std::byte> bytes = encode(codec, matrix);
    for (const int change : {-1, 1}) {
      std::vector<std::byte> wrong = bytes;
      wrong.resize(wrong.size() + static_cast<size_t>(change));
      EXPECT_THROW(codec.decode(wrong, matrix), FormatError) << name;
    }
    EXPECT_THROW(codec.decode({}, matrix), FormatError);
  }
  for (const float scale : {-1.0f, kInfinity, static_cast<float>(NAN), kLargest}) {
    std::vector<std::byte> bytes = encode(require_codec("int8"), matrix);
    std::memcpy(bytes.data() + sizeof(float), &scale, sizeof(scale));
    EXPECT_THROW(require_codec("int8").decode(bytes, matrix), FormatError) << scale;
  }
}

TEST(Codec, DecodersSurviveMutations) {
  Rng rng(11);
  std::vector<float> values = normal_values(2 * 9, 4);
  for (const std::string& name : codec_names()) {
    const Codec& codec = require_codec(name);
    const std::vector<std::byte> good = encode(codec, {values.data(), 2, 9, 9});
    std::vector<float> decoded(18);
    for (int trial = 0; trial < 150000; ++trial) {
      std::vector<std::byte> bytes = good;
      for (uint32_t edits = 1 + rng.below(4); edits > 0; --edits)
        bytes[rng.below(static_cast<uint32_t>(bytes.size()))] = static_cast<std::byte>(rng.below(256));
      if (rng.below(8) == 0) bytes.resize(rng.below(static_cast<uint32_t>(2 * good.size())));
      try {
        codec.decode(bytes, {decoded.data(), 2, 9, 9});
      } catch (const FormatError&) {
      }
    }
  }
}

}  // namespace
}  // namespace modelet::comm
