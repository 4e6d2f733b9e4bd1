#include "shard/data/encode/columns_encoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/rng.h"
#include "tests/error_of.h"
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

std::unique_ptr<ColumnsEncoder> fit(const Encoding& options, const std::string& text) {
  return ColumnsEncoder::fit(options, lines_of(text), {});
}

std::vector<OwnedSample> read(const ColumnsEncoder& encoder, const std::string& text) {
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

TEST(HashedColumns, KnowAllWordsAndValues) {
  const auto options = [](const std::string& columns) {
    return parse_encoding("[data]\nformat = 'columns'\n[text]\nbuckets = 100\n[table]\nhash_features = 50\n[columns]\n" + columns, "test");
  };
  const std::vector<std::string> labels = {"tea", "cars"};
  const Encoding known = options("title = 'text'\nshop = 'category'\nproduct = 'target'\n");
  const auto encoder = hashed_encoder(known, labels);
  EXPECT_EQ(restore_encoder(encoder->state(), "test")->state(), encoder->state());
  const std::string table = "title,shop,product\ngreen leaves,east,tea\nfour wheels,west,cars\ngreen leaves,east,none\n";
  const auto reader = encoder->open(lines_of(table));
  EXPECT_EQ(reader->features(), 100u + 50u + 2u) << "a value that is missing or rare has a feature";
  std::vector<OwnedSample> samples;
  for (Sample sample; reader->next(sample);) samples.emplace_back(sample);
  ASSERT_THAT(samples, SizeIs(3));
  EXPECT_EQ(reader->unknown_labels(), 1u);
  EXPECT_EQ(samples[0].features, samples[2].features);
  EXPECT_THAT(samples[0].labels, ElementsAre(0));
  EXPECT_THAT(samples[1].labels, ElementsAre(1));
  // What is fitted has the same values, of the features that it knows.
  const auto fitted = read(*fit(known, table), table);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(fitted[i].values, samples[i].values) << i;
  for (const char* other : {"price = 'number'\nproduct = 'target'\n", "day = 'date'\nproduct = 'target'\n", "n = 'category'\nbought = 'label'\n",
                            "user = 'entity'\nmoment = 'time'\nproduct = 'target'\n"})
    EXPECT_THROW(hashed_encoder(options(other), labels), UsageError) << other;
}

TEST(TableColumns, ValuesOfCategoriesAreFeatures) {
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

TEST(TableColumns, ColumnsAreFoundByNameAndMeanTheSameInAnyOrder) {
  const Encoding options = options_of({"label:y", "cat:a", "bin:n"}, true);
  const std::string text = "y,a,n\n1,x,3\n0,z,\n";
  const auto encoder = fit(options, text);
  EXPECT_EQ(read(*encoder, text), read(*encoder, "unused,n,a,y\n7,3,x,1\n8,,z,0\n"));
}

TEST(TableColumns, RareAndUnknownValuesShareAFeature) {
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

TEST(TableColumns, CrossesAreCombinations) {
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

TEST(TableColumns, NumbersAreCrossedByMagnitude) {
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

TEST(TableColumns, HashesEvenly) {
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

TEST(TableColumns, ValuesThatFallTogetherAreCounted) {
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
TEST(TableColumns, ABucketIsCountedOnceASample) {
  Encoding options = options_of({"label:y", "cat:a1..a64"});
  options.table.hash_features = 16;
  options.table.min_count = 2;
  std::string line = "0";
  for (int i = 0; i < 64; ++i) line += ",v";
  EXPECT_EQ(fit(options, line + "\n")->open(lines_of(line + "\n"))->features(), 2 * 64u);
  EXPECT_GT(fit(options, line + "\n" + line + "\n")->open(lines_of(line + "\n"))->features(), 2 * 64u);
}

TEST(TableColumns, BinsHoldEquallyManyTrainingSamples) {
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

TEST(TableColumns, BinsFollowTheValues) {
  Encoding options = options_of({"label:y", "bin:n"});
  options.table.bins = 4;
  const auto encoder = fit(options, "0,0\n0,0\n0,0\n0,0\n0,1\n0,2\n0,5\n0,5\n");  // edges 1, 5
  const auto samples = read(*encoder, "0,-7.5\n0,0\n0,0.99\n0,1\n0,4\n0,5\n0,1e30\n0,\n");
  std::vector<uint32_t> bins;
  for (const auto& sample : samples) bins.push_back(sample.features.at(0));
  EXPECT_THAT(bins, ElementsAre(1, 1, 1, 2, 2, 3, 3, 0));
}

TEST(TableColumns, ScalesNumbers) {
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

TEST(TableColumns, OutliersAreCut) {
  const auto encoder = fit(options_of({"label:y", "num:a"}), "0,1\n0,2\n");
  const auto samples = read(*encoder, "0,3e38\n0,-3e38\n");
  EXPECT_THAT(samples[0].values, ElementsAre(100));
  EXPECT_THAT(samples[1].values, ElementsAre(-100));
}

TEST(TableColumns, NumbersBelowTheRangeOfDoublesAreZero) {
  const auto encoder = fit(options_of({"label:y", "num:a"}), "0,1\n0,-1\n0,3\n");
  const auto samples = read(*encoder, "0,0\n0,1e-400\n0,-1e-400\n0,1e-42\n");
  for (const OwnedSample& sample : samples) EXPECT_EQ(sample, samples[0]);
}

TEST(TableColumns, SeveralLabelColumns) {
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

TEST(TableColumns, TheStateIsAllOfIt) {
  Encoding options = options_of(kLongColumns);
  options.table.min_count = 3;
  const std::string text = long_table(3000), other = long_table(4000);
  const auto encoder = fit(options, text);
  const std::vector<std::byte> state = encoder->state();
  EXPECT_EQ(fit(options, text)->state(), state);
  const auto restored = restore_encoder(state, "state");
  EXPECT_EQ(restored->state(), state);
  const auto* table = dynamic_cast<const ColumnsEncoder*>(restored.get());
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(read(*table, other), read(*encoder, other));
}

// There are more records than the reservoir holds. Its quantiles are those of all records, also of those that
// come late.
TEST(TableColumns, BinsOfALongFileAreThoseOfTheWholeFile) {
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

TEST(TableColumns, RefusesDamagedStates) {
  const auto encoder = fit(options_of(kLongColumns), long_table(100));
  const std::vector<std::byte> state = encoder->state();
  testing::restore_damaged(state, 3000, [](const Encoder& restored, std::span<const std::byte> damaged) {
    const auto* table = dynamic_cast<const ColumnsEncoder*>(&restored);
    if (table == nullptr || encoder_options(SafetensorsFile(damaged, "state")).table.columns != kLongColumns)
      return;
    for (const auto& sample : read(*table, long_table(5)))
      for (const float value : sample.values) EXPECT_TRUE(std::isfinite(value));
  });
}

// As pandas writes a column: with a fraction as soon as a value is missing.
TEST(TableColumns, NumbersAndMissingValuesHaveOneMeaningHoweverTheyAreWritten) {
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

TEST(TableColumns, ErrorsNameLineColumnAndCause) {
  struct Case {
    const char *text, *where, *what;
  };
  const Encoding options = options_of({"label:y", "num:n", "cat:c"}, true);
  const Case cases[] = {
      {"", "data.csv: ", "the file is empty, a header is expected"},
      {"y,n\n", "data.csv: ", "table.columns: there is no column 'c' among 2"},
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
    } catch (const Error& e) {
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

TEST(TableColumns, ReadsCriteosLayout) {
  Encoding options;
  options.format = DataFormat::kCriteo;
  std::string line = "1";
  for (int i = 1; i <= 13; ++i) line += "\t" + (i % 3 == 0 ? "" : std::to_string(i));
  for (int i = 1; i <= 26; ++i) line += i % 5 == 0 ? "\t" : "\t68fd1e64";
  line += "\n0" + line.substr(1);
  const auto encoder = ColumnsEncoder::fit(options, lines_of(line), {});
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

// ---- Formats csv and columns ----

TEST(CsvColumns, AWholeNumberHasOneName) {
  const Encoding options = parse_encoding(
      "[data]\nformat = 'csv'\n[csv]\nlabels = 'l'\ntext = ['t', 'u']\nlabel_separator = 'pipe'", "test");
  const auto encoder = fit(options, "l,t,u\n1.0| 2.0,3.0,1.0 x\n1e+16,,true\n");
  EXPECT_THAT(label_names(encoder->state(), "state"), ElementsAre("1", "2", "10000000000000000"));
  EXPECT_EQ(read(*encoder, "l,t,u\n1|2,3,1.0 x\n10000000000000000,,true\n"),
            read(*encoder, "l,t,u\n1.0| 2.0,3.0,1.0 x\n1e+16,,true\n"));
  // An n-gram does not cross from one column to the next.
  Encoding pairs = options;
  pairs.text.word_ngrams = 2;
  const auto of_pairs = fit(pairs, "l,t,u\nx,a b,c\n");
  EXPECT_EQ(of_pairs->open(lines_of("l,t,u\n"))->features(), 4u);  // a, b, c, a b
}

Encoding columns_options() {
  return parse_encoding(
      "[data]\nformat = 'columns'\n[table]\nhash_features = 65536\nmin_count = 2\nbins = 4\n"
      "[columns]\nprice = 'number'\n'the date' = 'date'\nshop = 'category'\ntags = 'category separator=pipe'\n"
      "title = 'text'\nproduct = 'target separator=semicolon'\nid = 'ignore'\n",
      "test");
}

struct PlainRecord {
  std::string price, date, shop, title;
  std::vector<std::string> tags, products;
};

std::string joined(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : std::string(1, separator)) + part;
  return text;
}

std::vector<PlainRecord> plain_records(uint64_t seed, int count) {
  Rng rng(seed);
  std::vector<PlainRecord> records;
  const auto word = [&](const char* kind, uint32_t of) { return kind + std::to_string(rng.below(of)); };
  for (int i = 0; i < count; ++i) {
    PlainRecord& record = records.emplace_back();
    if (rng.below(9) > 0) record.price = std::to_string(rng.below(100)) + ".5";
    if (rng.below(9) > 0)
      record.date = std::to_string(2020 + rng.below(3)) + "-0" + std::to_string(1 + rng.below(9)) + "-1" +
                    std::to_string(rng.below(9)) + (rng.below(2) == 0 ? "" : "T0" + std::to_string(rng.below(9)) + ":30");
    if (rng.below(9) > 0) record.shop = word("shop ", 50);
    for (uint32_t tags = rng.below(4); tags > 0; --tags) record.tags.push_back(word("t", 30));
    for (uint32_t words = rng.below(5); words > 0; --words) record.title += word("w", 20) + " ";
    for (uint32_t products = 1 + rng.below(2); products > 0; --products) record.products.push_back(word("p", 6));
  }
  return records;
}

std::string text_of(const std::vector<PlainRecord>& records) {
  std::string text = "unused,product,shop,tags,price,the date,title,id\n";
  for (const PlainRecord& r : records)
    text += "u," + joined(r.products, ';') + "," + r.shop + "," + joined(r.tags, '|') + "," + r.price + "," + r.date +
            "," + r.title + ",1\n";
  return text;
}

// The features of each column, by what they stand for. Parts lie in the order of the columns' names: price, shop, tags,
// the date, title.
using NamedFeatures = std::map<std::string, float>;

NamedFeatures plain_sample(const PlainRecord& record, const std::map<std::string, int>& counts) {
  NamedFeatures features;
  const auto known = [&](const std::string& name) { return counts.contains(name) && counts.at(name) >= 2; };
  const auto add_unit = [&](std::map<std::string, float> values) {
    float square = 0;
    for (const auto& [name, value] : values) square += value * value;
    for (const auto& [name, value] : values) features[name] = value / std::sqrt(square);
  };
  features["price " + record.price] = 1;  // its range; the value is another feature, which is tested above
  const std::string shop = "shop " + record.shop;
  features[record.shop.empty() ? "shop missing" : known(shop) ? shop : "shop rare"] = 1;
  std::map<std::string, float> tags;
  for (const std::string& tag : record.tags) tags[known("tag " + tag) ? "tag " + tag : "tag rare"] += 1;
  if (tags.empty()) tags["tag missing"] = 1;
  add_unit(tags);
  std::map<std::string, float> words;
  std::istringstream title(record.title);
  for (std::string word; title >> word;)
    if (counts.contains("word " + word)) words["word " + word] += 1;
  if (!words.empty()) add_unit(words);
  return features;
}

TEST(Columns, EqualPlainFeaturesOfEachColumn) {
  const auto train = plain_records(1, 400), other = plain_records(2, 200);
  std::map<std::string, int> counts;
  for (const PlainRecord& record : train) {
    std::set<std::string> of_record = {"shop " + record.shop};
    for (const std::string& tag : record.tags) of_record.insert("tag " + tag);
    std::istringstream title(record.title);
    for (std::string word; title >> word;) of_record.insert("word " + word);
    for (const std::string& name : of_record) ++counts[name];
  }
  const auto encoder = fit(columns_options(), text_of(train));
  const std::vector<std::string> labels = label_names(encoder->state(), "state");
  for (const auto& records : {train, other}) {
    const auto samples = read(*encoder, text_of(records));
    ASSERT_EQ(samples.size(), records.size());
    // A name always has the same feature, and different names have different ones.
    std::map<std::string, std::set<uint32_t>> candidates;
    for (size_t i = 0; i < records.size(); ++i) {
      const NamedFeatures expected = plain_sample(records[i], counts);
      for (const auto& [name, value] : expected) {
        if (name.starts_with("price")) continue;
        std::set<uint32_t> with_value;
        for (size_t f = 0; f < samples[i].features.size(); ++f)
          if (std::abs(samples[i].values[f] - value) < 1e-5f) with_value.insert(samples[i].features[f]);
        if (const auto found = candidates.find(name); found == candidates.end())
          candidates[name] = with_value;
        else
          std::erase_if(found->second, [&](uint32_t feature) { return !with_value.contains(feature); });
        ASSERT_FALSE(candidates[name].empty()) << name;
      }
      std::vector<uint32_t> expected_labels;
      for (uint32_t label = 0; label < labels.size(); ++label)
        if (std::ranges::count(records[i].products, labels[label]) > 0) expected_labels.push_back(label);
      EXPECT_EQ(samples[i].labels, expected_labels);
      // Besides those: a range and a value of the price, or twice that it is missing; and the parts of the date.
      const bool date = !records[i].date.empty(), hour = records[i].date.size() > 10;
      const size_t of_price = 2, of_date = date ? 5 + (hour ? 1 : 0) : 1;
      EXPECT_EQ(samples[i].features.size(), expected.size() - 1 + of_price + of_date) << i;
    }
  }
}

// The same records as JSON Lines, with missing values in every form.
std::string json_of(const std::vector<PlainRecord>& records) {
  std::string text;
  for (const PlainRecord& r : records) {
    nlohmann::json line = {{"product", r.products}, {"tags", r.tags}, {"title", r.title}, {"more", {{"nested", 1}}}};
    if (!r.price.empty())
      line["price"] = std::stod(r.price);
    else if (r.shop.size() % 2 == 0)
      line["price"] = nullptr;
    line["the date"] = r.date;
    if (!r.shop.empty()) line["shop"] = r.shop;
    text += line.dump() + "\n";
  }
  return text;
}

TEST(Columns, JsonLinesAreTheSameTable) {
  const auto train = plain_records(1, 400), other = plain_records(2, 200);
  const auto encoder = fit(columns_options(), text_of(train)), of_json = fit(columns_options(), json_of(train));
  EXPECT_EQ(of_json->state(), encoder->state());
  for (const auto& records : {train, other}) EXPECT_EQ(read(*encoder, json_of(records)), read(*encoder, text_of(records)));
  // Empty lines and a byte-order mark mean nothing, and labels may be missing.
  const auto samples = read(*encoder, "\xef\xbb\xbf\n {\"price\": 3, \"product\": \"p1\"}\r\n\n{\"price\": 3.0}\n{}");
  ASSERT_THAT(samples, SizeIs(3));
  EXPECT_THAT(samples[0].labels, SizeIs(1));
  EXPECT_EQ(samples[0].features, samples[1].features);
  EXPECT_THAT(samples[1].labels, IsEmpty());
  const auto flags = fit(parse_encoding("[data]\nformat = 'columns'\n[columns]\nn = 'number'\ny = 'label'\n", "test"),
                         "{\"n\": 1, \"y\": 1}\n{\"n\": 2, \"y\": false}\n");
  EXPECT_THAT(read(*flags, "{\"n\": 1, \"y\": true}\n{\"n\": 2}\n")[0].labels, ElementsAre(0));
}

TEST(Columns, WrongJsonNamesLineAndColumn) {
  const std::string good =
      R"({"product": "p", "title": "t", "shop": "s", "tags": ["g"], "price": 1, "the date": "2021-01-10"})" "\n";
  const auto error = [&](const std::string& line) {
    return test::error_of([&] { fit(columns_options(), good + line + "\n" + good); });
  };
  EXPECT_THAT(error(R"({"product": {"name": "p"}})"), StartsWith("data.csv:2: column 'product': a string, a number"));
  EXPECT_THAT(error(R"({"tags": [["g"]]})"), StartsWith("data.csv:2: column 'tags': a string, a number"));
  EXPECT_THAT(error(R"({"tags": ["a|b"]})"), StartsWith("data.csv:2: column 'tags': the value 'a|b' of a list has"));
  EXPECT_THAT(error(R"({"shop": ["a"]})"), StartsWith("data.csv:2: column 'shop': a list is for a column of text, or with a separator"));
  EXPECT_THAT(error(R"({"price": "dear"})"), StartsWith("data.csv:2: column 'price': expected a number"));
  EXPECT_THAT(error(R"({"price": NaN})"), HasSubstr("a missing value is null"));
  EXPECT_THAT(error(R"({"price": 1, "price": 2})"), StartsWith("data.csv:2: the key 'price' appears twice"));
  EXPECT_THAT(error("p,t,s,g,1,2021-01-10"), StartsWith("data.csv:2: not valid JSON"));
  EXPECT_THAT(error("[]"), StartsWith("data.csv:2: an object of columns"));
  EXPECT_THAT(error(R"({"prize": 1})"), StartsWith("data.csv:2: has none of the columns 'price', 'product', 'shop'"));
  EXPECT_THAT(test::error_of([&] { fit(columns_options(), R"({"product": "p", "tags": "a", "title": "t"})"); }),
              HasSubstr("columns.price: no record has a value of 'price'"));
}

TEST(Columns, DatesBecomeTheirParts) {
  const Encoding options =
      parse_encoding("[data]\nformat = 'columns'\n[columns]\nd = 'date'\ny = 'label'\n", "test");
  const auto encoder = fit(options, "d,y\n2020-03-01,1\n2022-03-02T05:00,0\n");
  const auto samples = read(*encoder, "d,y\n2022-12-31T23:10,1\n2023-01-02,0\n,0\nNaT,0\n");
  constexpr uint32_t kYears = 12 + 31 + 7 + 24;
  // December, the 31st, a Saturday, 23 h, the third year, and the date as a number.
  EXPECT_THAT(samples[0].features, ElementsAre(11, 12 + 30, 43 + 5, 50 + 23, kYears + 2, kYears + 3 + 1));
  EXPECT_THAT(samples[1].features, ElementsAre(0, 12 + 1, 43 + 0, kYears + 3 + 1));  // a year that training lacks
  EXPECT_THAT(samples[2].features, ElementsAre(kYears + 3));
  EXPECT_EQ(samples[3], samples[2]);
  EXPECT_THAT(samples[0].labels, ElementsAre(0));
}

TEST(Columns, ColumnsAreFoundByNameAndLabelsMayBeMissing) {
  const auto encoder = fit(columns_options(), text_of(plain_records(1, 100)));
  const std::string with = "product,title,shop,tags,price,the date\np1;p2,w1 w2,shop 1,t1|t2,3,2021-01-10\n";
  const std::string without = "the date,price,tags,shop,title\n2021-01-10,3.0, t2 |t1,shop 1,w1  w2\n";
  const auto a = read(*encoder, with), b = read(*encoder, without);
  EXPECT_EQ(a[0].features, b[0].features);
  EXPECT_EQ(a[0].values, b[0].values);
  EXPECT_THAT(a[0].labels, SizeIs(2));
  EXPECT_THAT(b[0].labels, IsEmpty());
  // Rows of a request: fields in the order of names, without the label.
  const auto rows = encoder->open_rows(CsvReader({{"3", "shop 1", "t1|t2", "2021-01-10", "w1 w2"}}, "rows"));
  Sample sample;
  ASSERT_TRUE(rows->next(sample));
  EXPECT_EQ(OwnedSample(sample).features, b[0].features);
}

TEST(Columns, TheStateIsAllOfItAndDamagedOnesAreRefused) {
  const std::string text = text_of(plain_records(3, 200)), other = text_of(plain_records(4, 100));
  const auto encoder = fit(columns_options(), text);
  const std::vector<std::byte> state = encoder->state();
  const auto restored = restore_encoder(state, "state");
  EXPECT_EQ(restored->state(), state);
  EXPECT_EQ(read(dynamic_cast<const ColumnsEncoder&>(*restored), other), read(*encoder, other));
  const auto columns = columns_options().columns;
  testing::restore_damaged(state, 2000, [&](const Encoder& damaged, std::span<const std::byte> bytes) {
    const auto* table = dynamic_cast<const ColumnsEncoder*>(&damaged);
    if (table == nullptr || encoder_options(SafetensorsFile(bytes, "state")).columns != columns) return;
    try {
      for (const auto& sample : read(*table, other))
        for (const float value : sample.values) EXPECT_TRUE(std::isfinite(value));
    } catch (const Error&) {  // the file has another delimiter than the options now
    }
  });
}

TEST(Columns, WrongCellsNameLineColumnAndCause) {
  const std::string header = "product,title,shop,tags,price,the date\n", good = "p,t,s,g,1,2021-01-10\n";
  const auto error = [&](const std::string& text) {
    try {
      fit(columns_options(), text);
    } catch (const Error& failure) {
      return std::string(failure.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(header + good), "no error");
  EXPECT_THAT(error(header + good + "p,t,s,g,dear,2021-01-10\n"),
              StartsWith("data.csv:3: column 'price': expected a number, or nothing if it is missing, found 'dear'"));
  EXPECT_THAT(error(header + good + "p,t,s,g,1,10.1.2021\n"), StartsWith("data.csv:3: column 'the date': expected a date"));
  EXPECT_THAT(error("product,title,shop,tags,prize,the date\n" + good),
              HasSubstr("columns.price: there is no column 'price' among 6; did you mean 'prize'?"));
  EXPECT_THAT(error(header + ",t,s,g,1,\n"), HasSubstr("has no label in 1 samples"));
}

}  // namespace
}  // namespace modelet::shard
