#include "shard/data/encode/guess.h"

#include <gmock/gmock.h>

#include <map>

#include "base/error.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::HasSubstr;

// A table of 60 records of columns of every kind.
std::string mixed_table() {
  std::string text = "id,price,zip,bought,shop,tags,title,active,none,key\n";
  for (int i = 0; i < 60; ++i) {
    const std::string n = std::to_string(i);
    text += std::to_string(1000 + i) + "," + (i == 7 ? "nan" : std::to_string(i % 9) + ".5") + ",0" + std::to_string(10 + i % 5) +
            ",2026-11-" + std::to_string(10 + i % 20) + "," + (i % 2 == 0 ? "New York" : "Rome") + "," +
            (i % 2 == 0 ? "a|b" : "c") + ",a title of several words number " + n + "," + (i % 3 == 0 ? "True" : "False") +
            ",,k" + n + "\n";
  }
  return text;
}

TEST(GuessColumns, FromTheirValues) {
  const testing::TemporaryFolder folder;
  const auto file = folder.write("t.csv", mixed_table());
  const ColumnGuess guess = guess_columns(file, {}, {{"active", {.type = ColumnType::kTarget}}});
  std::map<std::string, std::string> uses;
  for (const GuessedColumn& column : guess.columns) {
    uses[column.name] = to_text(column.use);
    EXPECT_FALSE(column.reason.empty()) << column.name;
  }
  EXPECT_EQ(uses, (std::map<std::string, std::string>{{"id", "ignore"},
                                                      {"price", "number"},
                                                      {"zip", "category"},
                                                      {"bought", "date"},
                                                      {"shop", "category"},
                                                      {"tags", "category separator=pipe"},
                                                      {"title", "text"},
                                                      {"active", "target"},
                                                      {"none", "ignore"},
                                                      {"key", "ignore"}}));
  EXPECT_EQ(guess.records, 60u);
  EXPECT_TRUE(guess.whole);
  EXPECT_EQ(guess.columns[8].missing, 60u);
  EXPECT_EQ(guess.columns[4].distinct, 2u);
  EXPECT_THAT(guess.columns[4].examples, ::testing::ElementsAre("New York", "Rome"));
}

TEST(GuessColumns, TheSeparatorOfAnOpenTarget) {
  const testing::TemporaryFolder folder;
  const auto file = folder.write("t.csv", mixed_table());
  const ColumnUses tags = {{"tags", {.type = ColumnType::kTarget}}};
  EXPECT_EQ(to_text(guess_columns(file, {}, tags, {"tags"}).columns[5].use), "target separator=pipe");
  EXPECT_EQ(to_text(guess_columns(file, {}, tags).columns[5].use), "target");
}

TEST(GuessColumns, DelimitersAndHeaders) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(guess_delimiter(folder.write("a", "a;b;c\n")), Delimiter::kSemicolon);
  EXPECT_EQ(guess_delimiter(folder.write("b", "a\tb|c\td\n")), Delimiter::kTab);
  EXPECT_EQ(guess_delimiter(folder.write("c", "a,b;c;d;e\n")), Delimiter::kComma);
  EXPECT_EQ(guess_delimiter(folder.write("d", "")), Delimiter::kComma);
  const ColumnGuess numbered = guess_columns(folder.write("e", "1.5,x\n2.5,y\n"), {.header = false}, {});
  EXPECT_EQ(numbered.columns[0].name, "1");
  EXPECT_EQ(to_text(numbered.columns[0].use), "number");
  EXPECT_EQ(numbered.records, 2u);
}

TEST(GuessColumns, KeysOfJsonLines) {
  const testing::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 60; ++i) {
    const std::string n = std::to_string(i % 7);
    text += "{\"price\": " + n + ".5, \"shop\": \"s" + n + "\", \"words\": [\"a|" + n + "\"], \"tags\": [1, " + n +
            (i == 5 ? "], \"late\": true" : "]") + ", \"label\": [\"x\", \"y;" + n + "\"]}\n";
  }
  const auto file = folder.write("t.jsonl", text);
  const ColumnGuess guess = guess_columns(file, {}, {{"label", {.type = ColumnType::kTarget}}}, {"label"});
  std::map<std::string, std::string> uses;
  for (const GuessedColumn& column : guess.columns) uses[column.name] = to_text(column.use);
  EXPECT_EQ(uses, (std::map<std::string, std::string>{{"price", "number"},
                                                      {"shop", "category"},
                                                      {"words", "category separator=semicolon"},
                                                      {"tags", "category separator=pipe"},
                                                      {"late", "category"},
                                                      {"label", "target separator=pipe"}}));
  EXPECT_TRUE(guess.json);
  EXPECT_EQ(guess.columns.back().name, "late");
  EXPECT_EQ(guess.columns.back().missing, 59u);
  const auto error = [&](const std::string& lines, const ColumnUses& given) {
    const auto other = folder.write("other.json", lines);
    return test::error_of([&] { guess_columns(other, {}, given); });
  };
  const std::string nested = "{\"a\": 1}\n{\"a\": 1, \"b\": {\"c\": 1}}\n";
  EXPECT_THAT(error(nested, {}), HasSubstr("other.json:2: column 'b': the value is an object or a list of lists"));
  EXPECT_NO_THROW(guess_columns(folder.write("a.json", nested), {}, {{"b", {.type = ColumnType::kIgnore}}}));
  EXPECT_THAT(error("[\n{\"a\": 1}]", {}), HasSubstr("jq -c .[]"));
  EXPECT_THAT(error("a,b\n", {}), HasSubstr("other.json:1: not valid JSON"));
  EXPECT_THAT(error("", {}), HasSubstr("the file is empty"));
  EXPECT_THAT(error("{}", {}), HasSubstr("the file is empty"));
  EXPECT_THAT(error("{\"a\": 1}", {{"ab", {.type = ColumnType::kTarget}}}), HasSubstr("there is no column 'ab'"));
}

TEST(GuessColumns, Errors) {
  const testing::TemporaryFolder folder;
  const auto file = folder.write("t.csv", "prize,shop\n1,x\n");
  const auto error = [&](const std::filesystem::path& path, const ColumnUses& given) {
    return test::error_of([&] { guess_columns(path, {}, given); });
  };
  EXPECT_THAT(error(file, {{"price", {.type = ColumnType::kTarget}}}),
              HasSubstr("there is no column 'price' among 2; did you mean 'prize'?"));
  EXPECT_THAT(error(folder.write("empty", ""), {}), HasSubstr("the file is empty"));
  // Names that no experiment can hold, and names that are there twice, are left out.
  for (const GuessedColumn& column : guess_columns(folder.write("odd", "a\x01,b,b\n1,2,3\n"), {}, {}).columns)
    EXPECT_EQ(column.use.type, ColumnType::kIgnore);
}

}  // namespace
}  // namespace modelet::shard
