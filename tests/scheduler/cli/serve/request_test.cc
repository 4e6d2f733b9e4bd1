#include "scheduler/cli/serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/read/cells.h"
#include "shard/data/read/xmc_reader.h"
#include "tests/error_of.h"
#include "tests/growth.h"

namespace modelet::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

shard::Columns reading(const std::string& toml) { return shard::Columns(parse_encoding(toml, "test")); }

shard::LineReader lines_of(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "query"};
}

// Any text is one field, and numbers are written out.
TEST(RequestTest, FieldsByNameOrInOrder) {
  const auto row_of = [](const std::string& fields, const shard::Columns& columns) {
    const PredictRequest request = parse_request("{\"fields\": " + fields + "}", columns, {});
    EXPECT_EQ(request.queries[0].where, "fields");
    return request.queries[0].row;
  };
  const shard::Columns table =
      reading("[data]\nformat='table'\n[table]\ncolumns=['label:y','num:n','cat:c,d','skip:s']");
  EXPECT_THAT(table.names(), ElementsAre("n", "c", "d", "s"));
  for (const char* same :
       {R"({"d": "a,\"b\"\n\tc", "n": 1.5, "c": null})", R"({"n": 1.5, "d": "a,\"b\"\n\tc", "s": ""})",
        R"([1.5, "", "a,\"b\"\n\tc", null])", R"({"y": 1, "n": 1.5, "d": "a,\"b\"\n\tc"})"})
    EXPECT_THAT(row_of(same, table), ElementsAre("1.5", "", "a,\"b\"\n\tc", "")) << same;
  EXPECT_THAT(row_of(R"(["n", "c", "d", "s"])", table), ElementsAre("n", "c", "d", "s"));
  EXPECT_THAT(row_of(R"([true, 1.0, false, 1e16])", table), ElementsAre("True", "1.0", "False", "1e+16"));
  EXPECT_THAT(row_of("[18446744073709551615, 18446744073709551617, -9223372036854775809, 0]", table),
              ElementsAre("18446744073709551615", "18446744073709551617", "-9223372036854775809", "0"));
  EXPECT_THAT(row_of("{}", table), ElementsAre("", "", "", ""));
  EXPECT_THAT(row_of(R"({"n": 1, "c": "x", "d": "y", "s": "", "else": 7})", table),
              ElementsAre("1", "x", "y", ""));
  const shard::Columns csv = reading("[data]\nformat='csv'\n[csv]\nlabels='1'\nheader=false\ntext=['3','2']");
  EXPECT_THAT(row_of(R"({"2": 7, "3": "x"})", csv), ElementsAre("x", "7"));
  const auto error = [&](const std::string& question, const shard::Columns& columns) {
    return test::error_of([&] { parse_request(question, columns, {}); });
  };
  EXPECT_THAT(error(R"({"fields": {"n": 1, "cc": "x"}})", table),
              HasSubstr("fields: this model has no column 'cc'; it has n, c, d, s"));
  EXPECT_THAT(error(R"({"samples": [{"fields": [1]}]})", table),
              HasSubstr("samples[0].fields: 1 values for the 4 columns"));
  EXPECT_THAT(error(R"({"fields": {"n": [1]}})", table),
              HasSubstr("fields.n: a list is for a column of text, or with a separator"));
  EXPECT_THAT(error(R"({"fields": [1, {}, 2, 3]})", table), HasSubstr("fields[1]: a string, a number, true, false, null"));
  const shard::Columns lists =
      reading("[data]\nformat='columns'\n[columns]\ntags='category separator=pipe'\ntitle='text'\ny='target'");
  EXPECT_THAT(row_of(R"({"tags": ["a", 7, null, true], "title": ["x y", "z"]})", lists),
              ElementsAre("a|7|True", "x y\nz"));
  EXPECT_THAT(error(R"({"samples": [{"fields": {"tags": ["a|b"]}}]})", lists),
              HasSubstr("samples[0].fields.tags: the value 'a|b' of a list has the column's separator in it"));
  EXPECT_THAT(error(R"({"fields": {"tags": [["a"]]}})", lists), HasSubstr("no nested value"));
  EXPECT_THAT(error(R"({"fields": 1})", table), HasSubstr("an object of columns"));
  EXPECT_THAT(error(R"({"fields": {"n": NaN}})", table), HasSubstr("a missing value is null"));
  EXPECT_THAT(error(R"({"text": "a"})", table), HasSubstr("give 'fields'"));
  EXPECT_THAT(error(R"({"fields": {"a": 1}})", reading("[data]\nformat='text'")),
              HasSubstr("does not read columns"));
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
    return Asked{parse_encoding("[data]\nformat='table'\n[table]\ncolumns=[" + columns + "]", "test"),
                 R"({"samples": [{"fields": {)" + fields + R"(}}, {"fields": {}}]})",
                 names + "\n" + values + "\n"};
  };
  EXPECT_TRUE(test::grows_linearly(200, asked, [](const Asked& a) {
    EXPECT_EQ(parse_request(a.question, shard::Columns(a.options), {}).queries.size(), 2u);
  }));
  EXPECT_TRUE(test::grows_linearly(200, asked, [](const Asked& a) {
    shard::CellReader cells(shard::column_plan(a.options).columns, shard::ColumnsIn::kHeader,
                            shard::CsvReader(lines_of(a.table), {}), shard::LabelsIn::kOptional);
    EXPECT_TRUE(cells.next());
  }));
}

// A question that is accepted keeps the limits. Every other one is an error with a helpful text.
TEST(RequestTest, DamagedQuestions) {
  const std::string good[] = {
      R"({"samples": [{"text": "a \"b\" c"}, {"features": {"ids": [7, 3], "values": [0.1, -2e5]}}], "k": 3})",
      R"({"fields": {"n": 1.5, "c": "red\n\"x\",y"}, "sparse": true})", R"({"features": "1:2 3:4", "k": 5})"};
  const shard::Columns options[] = {
      reading("[data]\nformat='text'"), reading("[data]\nformat='csv'\n[csv]\nlabels='t'\ntext=['n','c']"),
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
      for (const Query& query : request.queries)
        ASSERT_TRUE(!query.ids || query.text.ends_with('\n')) << text;
    } catch (const Error& error) {
      ASSERT_STRNE(error.what(), "");
    }
  }
  EXPECT_GT(accepted, 1000u);
}

}  // namespace
}  // namespace modelet::cli
