#include "shard/data/encode/guess.h"

#include <gmock/gmock.h>

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
