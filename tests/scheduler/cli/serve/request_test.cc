#include "scheduler/cli/serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/experiment/table_layout.h"
#include "base/rng.h"
#include "shard/data/encode/table_encoder.h"
#include "shard/data/read/table_records.h"
#include "shard/data/read/text_records.h"
#include "shard/data/read/xmc_reader.h"
#include "tests/error_of.h"
#include "tests/growth.h"

namespace modelet::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Encoding reading(const std::string& toml) { return parse_encoding(toml, "test"); }

shard::LineReader lines_of(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "query"};
}

std::vector<std::string> words_of(const Query& query, const Encoding& options) {
  const auto records = shard::open_records(options, lines_of(query.text), shard::LabelsIn::kOptional);
  shard::TextRecord record, more;
  EXPECT_TRUE(records->next(record));
  std::vector<std::string> words(record.words.begin(), record.words.end());
  EXPECT_FALSE(records->next(more)) << "a sample is one record";
  return words;
}

TEST(RequestTest, WordsReachTheirColumnsWhateverTheyHold) {
  const Encoding text = reading("[data]\nformat='text'");
  EXPECT_THAT(words_of(parse_request(R"({"text": "one\ntwo,\"three\" \r\n 4"})", text, {}).queries[0], text),
              ElementsAre("one", "two,\"three\"", "4"));
  for (const char* options : {"labels='tag'\ntext=['a','b']", "labels='1'\ntext=['3','2']\nheader=false",
                              "labels='tag'\ntext=['a','b']\ndelimiter='tab'"}) {
    const Encoding csv = reading(std::string("[data]\nformat='csv'\n[csv]\n") + options);
    const std::string first = csv.csv.text[0], second = csv.csv.text[1];
    const std::string fields =
        "{\"fields\": {\"" + second + "\": \"x\\n\\\"y\\\", z\", \"" + first + "\": 7}}";
    EXPECT_THAT(words_of(parse_request(fields, csv, {}).queries[0], csv),
                ElementsAre("7", "", "x", "\"y\",", "z"))
        << options;
    EXPECT_THAT(words_of(parse_request(R"({"text": "p\tq"})", csv, {}).queries[0], csv),
                ElementsAre("p", "q", ""))
        << options;
  }
}

TEST(RequestTest, FieldsOfTablesMayBeMissing) {
  for (const char* header : {"true", "false"}) {
    const Encoding options = reading(std::string("[data]\nformat='table'\n[csv]\nheader=") + header +
                                     "\n[table]\ncolumns=['label:y','num:n','cat:c']\nmin_count=1");
    const auto encoder = shard::TableEncoder::fit(
        options,
        shard::CsvReader(lines_of(options.csv.header ? "y,n,c\n1,2,red\n0,4,b\n" : "1,2,red\n0,4,b\n"), {}),
        {});
    const auto features = [&](const std::string& question) {
      const auto reader = encoder->open(lines_of(parse_request(question, options, {}).queries[0].text));
      shard::Sample sample;
      EXPECT_TRUE(reader->next(sample));
      return std::vector<uint32_t>(sample.features.begin(), sample.features.end());
    };
    EXPECT_EQ(features(R"({"fields": {"n": 2, "c": "red"}})"),
              features(R"({"fields": {"c": "red", "n": "2"}})"));
    EXPECT_EQ(features(R"({"fields": {"c": "red"}})"), features(R"({"fields": {"c": "red", "n": null}})"));
    EXPECT_NE(features(R"({"fields": {"c": "red"}})"), features(R"({"fields": {"c": "red", "n": 2}})"));
  }
}

TEST(RequestTest, IdsKeepTheirValues) {
  const PredictRequest request = parse_request(
      R"({"samples": [{"features": {"ids": [7, 3], "values": [0.1, -2e-5]}}, {"features": "5:1"}],
                       "k": 3, "sparse": false})",
      reading("[data]\nformat='text'"), {});
  EXPECT_FALSE(request.single);
  EXPECT_EQ(request.k, 3u);
  EXPECT_EQ(request.sparse, false);
  ASSERT_EQ(request.queries.size(), 2u);
  EXPECT_EQ(request.queries[1].where, "samples[1].features");
  shard::XmcReader reader(lines_of(request.queries[0].text), 8, 2);
  shard::Sample sample;
  ASSERT_TRUE(reader.next(sample));
  EXPECT_THAT(sample.features, ElementsAre(3, 7));
  EXPECT_THAT(sample.values, ElementsAre(-2e-5f, 0.1f));
}

// Readers take numbers without values for labels, so the answer would be that of a sample without features.
TEST(RequestTest, FeaturesNeedValues) {
  for (const char* features : {"7", "7,9", "7 9"})
    EXPECT_THAT(test::error_of([&] {
                  parse_request(R"({"features": ")" + std::string(features) + "\"}",
                                reading("[data]\nformat='text'"), {});
                }),
                HasSubstr("with a value after each id"))
        << features;
}

// A server has one thread for each core. Each column was looked for among all of them, for each sample.
TEST(RequestTest, WorkIsLinearInTheColumns) {
  struct Asked {
    Encoding options;
    std::string question, table;
  };
  const auto asked = [](size_t n) {
    std::string columns = "'label:y'", fields, names = "y", values = "1";
    for (size_t i = 0; i < n; ++i) {
      const std::string name = "a column " + std::to_string(i);
      columns += ",'cat:" + name + "'";
      fields += (i == 0 ? "\"" : ",\"") + name + "\": " + std::to_string(i);
      names += "," + name;
      values += ",v";
    }
    return Asked{reading("[data]\nformat='table'\n[table]\ncolumns=[" + columns + "]"),
                 R"({"samples": [{"fields": {)" + fields + R"(}}, {"fields": {}}]})",
                 names + "\n" + values + "\n"};
  };
  EXPECT_TRUE(test::grows_linearly(200, asked, [](const Asked& a) {
    EXPECT_EQ(parse_request(a.question, a.options, {}).queries.size(), 2u);
  }));
  EXPECT_TRUE(test::grows_linearly(200, asked, [](const Asked& a) {
    const TableLayout layout = table_layout(a.options.table, a.options.format);
    shard::TableRecords records(layout, true, 1024, shard::CsvReader(lines_of(a.table), {}),
                                shard::LabelsIn::kOptional);
    shard::TableRecord record;
    EXPECT_TRUE(records.next(record));
  }));
}

// A question that is accepted keeps the limits. Every other one is an error with a helpful text.
TEST(RequestTest, DamagedQuestions) {
  const std::string good[] = {
      R"({"samples": [{"text": "a \"b\" c"}, {"features": {"ids": [7, 3], "values": [0.1, -2e5]}}], "k": 3})",
      R"({"fields": {"n": 1.5, "c": "red\n\"x\",y"}, "sparse": true})", R"({"features": "1:2 3:4", "k": 5})"};
  const Encoding options[] = {reading("[data]\nformat='text'"),
                              reading("[data]\nformat='csv'\n[csv]\nlabels='t'\ntext=['n','c']"),
                              reading("[data]\nformat='table'\n[table]\ncolumns=['label:y','num:n','cat:c']"),
                              reading("[data]\nformat='xmc'")};
  const std::string alphabet = std::string("{}[]\":,\\0123456789.-+eabknx \n") + '\0' + '\xff';
  size_t accepted = 0;
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    std::string text = good[rng.below(std::size(good))];
    for (uint32_t changes = rng.below(4); changes > 0 && !text.empty(); --changes) {
      const size_t at = rng.below(static_cast<uint32_t>(text.size()));
      const char c = alphabet[rng.below(static_cast<uint32_t>(alphabet.size()))];
      if (rng.below(3) == 0)
        text[at] = c;
      else if (rng.below(2) == 0)
        text.insert(at, 1, c);
      else
        text.erase(at, 1 + rng.below(4));
    }
    try {
      const PredictRequest request =
          parse_request(text, options[rng.below(std::size(options))], {.samples = 2, .k = 7});
      ++accepted;
      ASSERT_TRUE(request.queries.size() == 1 || request.queries.size() == 2) << text;
      ASSERT_TRUE(request.k >= 1 && request.k <= 7) << text;
      for (const Query& query : request.queries) ASSERT_TRUE(query.text.ends_with('\n')) << text;
    } catch (const FormatError& error) {
      ASSERT_STRNE(error.what(), "");
    }
  }
  EXPECT_GT(accepted, 1000u);
}

}  // namespace
}  // namespace modelet::cli
