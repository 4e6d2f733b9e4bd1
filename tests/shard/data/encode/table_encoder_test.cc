#include "shard/data/encode/table_encoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OwnedSample;
using ::testing::SizeIs;
using ::testing::StartsWith;

Encoding options_of(std::vector<std::string> columns, bool header = false) {
  Encoding options;
  options.format = DataFormat::kTable;
  options.table.columns = std::move(columns);
  options.table.hash_features = 1 << 16;
  options.table.min_count = 1;
  options.csv.header = header;
  return options;
}

LineReader lines_of(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "data.csv"};
}

CsvReader csv_of(const std::string& text, CsvDialect dialect = {}) { return {lines_of(text), dialect}; }

std::unique_ptr<TableEncoder> fit(const Encoding& options, const std::string& text) {
  return TableEncoder::fit(options, csv_of(text), {});
}

std::vector<OwnedSample> read(const TableEncoder& encoder, const std::string& text) {
  const auto reader = encoder.open(lines_of(text));
  std::vector<OwnedSample> samples;
  for (Sample sample; reader->next(sample);) {
    EXPECT_TRUE(std::ranges::is_sorted(sample.features, std::less_equal{}) || sample.features.size() < 2);
    for (const uint32_t feature : sample.features) EXPECT_LT(feature, reader->features());
    samples.emplace_back(sample);
  }
  return samples;
}

std::vector<OwnedSample> encode(const Encoding& options, const std::string& text) {
  return read(*fit(options, text), text);
}

TEST(TableEncoder, ValuesOfCategoriesAreFeatures) {
  const auto samples = encode(options_of({"label:y", "cat:a,b"}), "1,x,x\n0,x,\n0,z,x\n");
  ASSERT_THAT(samples, SizeIs(3));
  EXPECT_THAT(samples[0].labels, ElementsAre(0));
  EXPECT_THAT(samples[1].labels, IsEmpty());
  // Two features although the values are equal, because columns have salts of their own.
  EXPECT_THAT(samples[0].features, SizeIs(2));
  // `a` has the slots 0 and 1 for missing and rare, `b` 2 and 3.
  EXPECT_EQ(samples[1].features[0], 2u);
  EXPECT_THAT(samples[0].features, ::testing::Contains(samples[1].features[1]));
  EXPECT_THAT(samples[2].features, ::testing::Contains(::testing::AnyOfArray(samples[0].features)));
  EXPECT_NE(samples[2].features, samples[0].features);
  for (const auto& sample : samples) EXPECT_THAT(sample.values, ::testing::Each(1.0f));
}

TEST(TableEncoder, ColumnsAreFoundByNameAndMeanTheSameInAnyOrder) {
  const Encoding options = options_of({"label:y", "cat:a", "bin:n"}, true);
  const std::string text = "y,a,n\n1,x,3\n0,z,\n";
  const auto encoder = fit(options, text);
  EXPECT_EQ(read(*encoder, text), read(*encoder, "unused,n,a,y\n7,3,x,1\n8,,z,0\n"));
}

TEST(TableEncoder, RareAndUnknownValuesShareAFeature) {
  Encoding options = options_of({"label:y", "cat:a,b", "cross:a*b"});
  const std::string train = "1,x,u\n0,x,u\n0,once,u\n";
  options.table.min_count = 2;
  const auto encoder = fit(options, train);
  const auto samples = read(*encoder, train + "0,new,u\n");
  // Slots: a has 0 (missing) and 1 (rare), b has 2 and 3, the cross has 4. Then come x, u and their
  // combination.
  EXPECT_EQ(encoder->open(lines_of(train))->features(), 8u);
  EXPECT_EQ(samples[0], (OwnedSample{samples[1].features, {1, 1, 1}, {0}}));
  EXPECT_THAT(samples[2].features, ElementsAre(1, 4, ::testing::Gt(4)));
  EXPECT_EQ(samples[3], (OwnedSample{samples[2].features, {1, 1, 1}, {}}));
  // If training has no rare values, unknown ones are left out.
  options.table.min_count = 1;
  EXPECT_THAT(read(*fit(options, train), "0,new,u\n").at(0).features, ElementsAre(::testing::Gt(4)));
}

TEST(TableEncoder, CrossesAreCombinations) {
  const auto samples = encode(options_of({"label:y", "cat:a,b", "cross:a*b"}),
                              "0,1,1\n0,1,2\n0,2,1\n0,2,2\n0,1,1\n0,12,\n0,1,2\n");
  std::map<uint32_t, int> samples_with;
  for (const auto& sample : samples)
    for (const uint32_t feature : sample.features) ++samples_with[feature];
  EXPECT_EQ(samples[0], samples[4]);
  EXPECT_EQ(samples[1], samples[6]);
  // a: 1, 2, 12; b: 1, 2, missing; five different pairs.
  EXPECT_THAT(samples_with, SizeIs(3 + 3 + 5));
}

TEST(TableEncoder, NumbersAreCrossedByMagnitude) {
  const auto samples = encode(options_of({"label:y", "cat:a", "log:n", "cross:a*n"}),
                              "0,x,4\n0,x,5.9\n0,x,6\n0,x,7\n0,x,-4\n0,x,\n0,x,0\n0,x,0.5\n");
  // After the slots 0 and 1 of n, 2 and 3 of a, and 4 of the cross: one feature of a, which all samples have,
  // and the cross.
  std::map<uint32_t, size_t> samples_with;
  for (const auto& sample : samples)
    for (const uint32_t feature : sample.features) ++samples_with[feature];
  std::vector<uint32_t> crosses;
  for (const auto& sample : samples)
    for (const uint32_t feature : sample.features)
      if (feature > 4 && samples_with[feature] < samples.size()) crosses.push_back(feature);
  ASSERT_THAT(crosses, SizeIs(samples.size()));
  EXPECT_EQ(crosses[0], crosses[1]);
  EXPECT_EQ(crosses[2], crosses[3]);
  EXPECT_THAT((std::set<uint32_t>(crosses.begin(), crosses.end())), SizeIs(6));
}

TEST(TableEncoder, HashesEvenly) {
  Encoding options = options_of({"label:y", "cat:a"});
  options.table.hash_features = 1000;  // no power of two
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "0," + std::to_string(i) + "\n";
  std::map<uint32_t, int> samples_with;
  for (const auto& sample : encode(options, text)) ++samples_with[sample.features.at(0)];
  EXPECT_THAT(samples_with, SizeIs(1000));
  double chi_square = 0;
  for (const auto& [feature, count] : samples_with) chi_square += (count - 20.0) * (count - 20.0) / 20;
  EXPECT_LT(chi_square, 1200);  // 999 degrees of freedom: mean 999, deviation 45
}

TEST(TableEncoder, ValuesThatFallTogetherAreCounted) {
  Encoding options = options_of({"label:y", "cat:a1..a64"});
  options.table.hash_features = 16;
  std::string line = "0";
  for (int i = 0; i < 64; ++i) line += ",v";
  const auto samples = encode(options, line + "\n");
  float sum = 0;
  for (const float value : samples.at(0).values) sum += value;
  EXPECT_EQ(sum, 64);
  EXPECT_LE(samples[0].features.size(), 16u);
}

// Two categories share a bucket in the only sample, so no bucket occurs in two.
TEST(TableEncoder, ABucketIsCountedOnceASample) {
  Encoding options = options_of({"label:y", "cat:a1..a64"});
  options.table.hash_features = 16;
  options.table.min_count = 2;
  std::string line = "0";
  for (int i = 0; i < 64; ++i) line += ",v";
  EXPECT_EQ(fit(options, line + "\n")->open(lines_of(line + "\n"))->features(), 2 * 64u);
  EXPECT_GT(fit(options, line + "\n" + line + "\n")->open(lines_of(line + "\n"))->features(), 2 * 64u);
}

TEST(TableEncoder, BinsHoldEquallyManyTrainingSamples) {
  Encoding options = options_of({"label:y", "bin:n"});
  options.table.bins = 10;
  std::string text = "0,\n";
  Rng rng(1);
  for (int i = 0; i < 5000; ++i) text += "0," + std::to_string(std::exp(3 * rng.normal())) + "\n";
  std::map<uint32_t, int> samples_with;
  for (const auto& sample : encode(options, text)) ++samples_with[sample.features.at(0)];
  ASSERT_THAT(samples_with, SizeIs(11));
  EXPECT_EQ(samples_with[0], 1);
  for (uint32_t bin = 1; bin <= 10; ++bin) EXPECT_NEAR(samples_with[bin], 500, 5) << bin;
}

TEST(TableEncoder, BinsFollowTheValues) {
  Encoding options = options_of({"label:y", "bin:n"});
  options.table.bins = 4;
  const auto encoder = fit(options, "0,0\n0,0\n0,0\n0,0\n0,1\n0,2\n0,5\n0,5\n");  // edges 1, 5
  const auto samples = read(*encoder, "0,-7.5\n0,0\n0,0.99\n0,1\n0,4\n0,5\n0,1e30\n0,\n");
  std::vector<uint32_t> bins;
  for (const auto& sample : samples) bins.push_back(sample.features.at(0));
  EXPECT_THAT(bins, ElementsAre(1, 1, 1, 2, 2, 3, 3, 0));
}

TEST(TableEncoder, ScalesNumbers) {
  const auto samples =
      encode(options_of({"label:y", "num:a", "log:b", "num:c"}), "0,1,0,5\n0,3,-1e3,5\n0,,7,5\n");
  // Mean 2, deviation 1. The constant column has no feature, because zeros are left out.
  EXPECT_THAT(samples[0].features, ElementsAre(1, 3));
  EXPECT_FLOAT_EQ(samples[0].values[0], -1);
  EXPECT_FLOAT_EQ(samples[1].values[0], 1);
  EXPECT_EQ(samples[2].features[0], 0u);
  const double logs[] = {0, -std::log(1001.0), std::log(8.0)};
  const double mean = (logs[0] + logs[1] + logs[2]) / 3;
  double square = 0;
  for (const double log : logs) square += (log - mean) * (log - mean) / 3;
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(samples[i].values.back(), (logs[i] - mean) / std::sqrt(square), 1e-5) << i;
}

TEST(TableEncoder, OutliersAreCut) {
  const auto encoder = fit(options_of({"label:y", "num:a"}), "0,1\n0,2\n");
  const auto samples = read(*encoder, "0,3e38\n0,-3e38\n");
  EXPECT_THAT(samples[0].values, ElementsAre(100));
  EXPECT_THAT(samples[1].values, ElementsAre(-100));
}

TEST(TableEncoder, NumbersBelowTheRangeOfDoublesAreZero) {
  const auto encoder = fit(options_of({"label:y", "num:a"}), "0,1\n0,-1\n0,3\n");
  const auto samples = read(*encoder, "0,0\n0,1e-400\n0,-1e-400\n0,1e-42\n");
  for (const OwnedSample& sample : samples) EXPECT_EQ(sample, samples[0]);
}

TEST(TableEncoder, SeveralLabelColumns) {
  const auto encoder = fit(options_of({"label:click,buy", "cat:a"}), "1,1,x\n0,1,x\n0,0,x\n");
  const auto samples = read(*encoder, "1,1,x\n0,1,x\n0,0,x\n");
  EXPECT_THAT(samples[0].labels, ElementsAre(0, 1));
  EXPECT_THAT(samples[1].labels, ElementsAre(1));
  EXPECT_THAT(samples[2].labels, IsEmpty());
  EXPECT_THAT(label_names(encoder->state(), "state"), ElementsAre("click", "buy"));
}

std::string long_table(int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) {
    Rng rng(7, {static_cast<uint64_t>(i)});
    text += std::to_string(rng.below(2)) + "," + std::to_string(rng.normal()) + "," +
            std::to_string(rng.below(1000)) + "," + std::to_string(rng.below(100) * rng.below(100)) + "," +
            std::to_string(rng.below(9)) + "\n";
  }
  return text;
}
const std::vector<std::string> kLongColumns = {"label:y", "num:a", "bin:b,c",
                                               "cat:c,d", "log:b", "cross:c*d"};

TEST(TableEncoder, TheStateIsAllOfIt) {
  Encoding options = options_of(kLongColumns);
  options.table.min_count = 3;
  const std::string text = long_table(3000), other = long_table(4000);
  const auto encoder = fit(options, text);
  const std::vector<std::byte> state = encoder->state();
  EXPECT_EQ(fit(options, text)->state(), state);
  const auto restored = restore_encoder(state, "state");
  EXPECT_EQ(restored->state(), state);
  const auto* table = dynamic_cast<const TableEncoder*>(restored.get());
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(read(*table, other), read(*encoder, other));
}

// There are more records than the reservoir holds. Its quantiles are those of all records, also of those that
// come late.
TEST(TableEncoder, BinsOfALongFileAreThoseOfTheWholeFile) {
  constexpr int kRows = 400'000;
  Encoding options = options_of({"label:y", "bin:n"});
  options.table.bins = 4;
  std::string text;
  for (int i = 0; i < kRows; ++i) text += "0," + std::to_string(i) + "\n";
  const auto encoder = fit(options, text);
  std::map<uint32_t, int> samples_with;
  for (const auto& sample : read(*encoder, text)) ++samples_with[sample.features.at(0)];
  ASSERT_THAT(samples_with, SizeIs(4));
  // A quantile of 65,536 draws deviates by 0.2 % of the rows.
  for (const auto& [bin, count] : samples_with) EXPECT_NEAR(count, kRows / 4, 0.01 * kRows) << bin;
}

TEST(TableEncoder, RefusesDamagedStates) {
  const auto encoder = fit(options_of(kLongColumns), long_table(100));
  const std::vector<std::byte> state = encoder->state();
  testing::restore_damaged(state, 3000, [](const Encoder& restored, std::span<const std::byte> damaged) {
    const auto* table = dynamic_cast<const TableEncoder*>(&restored);
    if (table == nullptr || encoder_options(SafetensorsFile(damaged, "state")).table.columns != kLongColumns)
      return;
    for (const auto& sample : read(*table, long_table(5)))
      for (const float value : sample.values) EXPECT_TRUE(std::isfinite(value));
  });
}

// As pandas writes a column: with a fraction as soon as a value is missing.
TEST(TableEncoder, NumbersAndMissingValuesHaveOneMeaningHoweverTheyAreWritten) {
  const Encoding options = options_of({"label:y", "num:n", "cat:c,d", "cross:c*d", "cross:c*n"});
  const auto encoder = fit(options, "1,1,1,True\n0,,2,False\n1,0.5,NA,x\n0,3,,nan\n");
  const auto expect_same = [&](const std::string& row, const std::string& other) {
    EXPECT_EQ(read(*encoder, row), read(*encoder, other)) << row << other;
  };
  const auto expect_other = [&](const std::string& row, const std::string& other) {
    EXPECT_NE(read(*encoder, row), read(*encoder, other)) << row << other;
  };
  expect_same("1,1,1,True\n", "1.0,1.0,1.0,true\n");
  expect_same("1,1,1,True\n", "True,TRUE,1.00,TRUE\n");
  expect_same("0,0,2,False\n", "False,false,2.0,false\n");
  for (const char* missing : {"nan", "NaN", "NA", "N/A", "<NA>", "null", "None"})
    expect_same("0,,2,x\n", std::string("0,") + missing + ",2,x\n");
  // In a column of categories these are words: NA is Namibia.
  expect_other("0,1,NA,x\n", "0,1,,x\n");
  expect_other("0,1,1,nan\n", "0,1,1,\n");
  // The same in training.
  const auto written = fit(options, "1.0,1.0,1.0,true\n0,nan,2.0,FALSE\nTrue,0.5,NA,x\n0.0,3.0,,nan\n");
  EXPECT_EQ(written->state(), encoder->state());
}

TEST(TableEncoder, ErrorsNameLineColumnAndCause) {
  struct Case {
    const char *text, *where, *what;
  };
  const Encoding options = options_of({"label:y", "num:n", "cat:c"}, true);
  const Case cases[] = {
      {"", "data.csv: ", "the file is empty, a header is expected"},
      {"y,n\n", "data.csv:1: ", "the header has no column 'c', which table.columns mentions"},
      {"y,n,c,n\n", "data.csv:1: ", "the column 'n' twice"},
      {"y,n,c\n2,1,a\n", "data.csv:2: ", "column 'y': a label must be 0 or 1, found '2'"},
      {"y,n,c\n,1,a\n", "data.csv:2: ", "column 'y': a label must be 0 or 1, found ''"},
      {"y,n,c\n1,1,a\n1,x,a\n",
       "data.csv:3: ", "column 'n': expected a number, or nothing if it is missing, found 'x'"},
      {"y,n,c\n1,1 ,a\n", "data.csv:2: ", "found '1 '"},
      {"y,n,c\nnan,1,a\n", "data.csv:2: ", "a label must be 0 or 1, found 'nan'"},
      {"y,n,c\n1,-inf,a\n", "data.csv:2: ", "found '-inf'"},
      {"y,n,c\n1,1e39,a\n", "data.csv:2: ", "the number '1e39' is beyond the range of 32-bit floats"},
      {"y,n,c\n1,1e999,a\n", "data.csv:2: ", "the number '1e999' is beyond"},
      {"y,n,c\n1,0x10,a\n", "data.csv:2: ", "found '0x10'"},
  };
  for (const Case& c : cases) {
    std::string error = "no error";
    try {
      encode(options, c.text);
    } catch (const FormatError& e) {
      error = e.what();
    }
    EXPECT_THAT(error, StartsWith(c.where)) << c.text;
    EXPECT_THAT(error, HasSubstr(c.what)) << c.text;
  }
  try {
    encode(options_of({"label:y", "cat:a,b"}), "1,x\n");
    FAIL();
  } catch (const FormatError& e) {
    EXPECT_THAT(e.what(), HasSubstr("data.csv:1: the record has 2 fields, table.columns mentions 3 columns"));
  }
}

TEST(TableEncoder, ReadsCriteosLayout) {
  Encoding options;
  options.format = DataFormat::kCriteo;
  std::string line = "1";
  for (int i = 1; i <= 13; ++i) line += "\t" + (i % 3 == 0 ? "" : std::to_string(i));
  for (int i = 1; i <= 26; ++i) line += i % 5 == 0 ? "\t" : "\t68fd1e64";
  line += "\n0" + line.substr(1);
  const auto encoder = TableEncoder::fit(options, csv_of(line, kTabSeparated), {});
  const auto reader = encoder->open(lines_of(line));
  EXPECT_EQ(reader->features(), 13 * 2 + 26 * 2 + 21);  // 5 categories have no values
  EXPECT_EQ(reader->labels(), 1u);
  Sample sample;
  ASSERT_TRUE(reader->next(sample));
  EXPECT_THAT(sample.features, SizeIs(39));
  EXPECT_THAT(sample.labels, ElementsAre(0));
  ASSERT_TRUE(reader->next(sample));
  EXPECT_THAT(sample.labels, IsEmpty());
  EXPECT_FALSE(reader->next(sample));
}

}  // namespace
}  // namespace modelet::shard
