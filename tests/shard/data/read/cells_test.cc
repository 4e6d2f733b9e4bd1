#include "shard/data/read/cells.h"

#include <gmock/gmock.h>

#include <sstream>

#include "base/error.h"
#include "shard/data/encode/columns.h"
#include "tests/error_of.h"

namespace modelet::shard {
namespace {

using ::testing::HasSubstr;
using Rows = std::vector<std::vector<std::string>>;

// The parts of the label's cell, and then the other cells, of each record of a CSV.
Rows cells_of_csv(const std::string& toml, const std::string& text) {
  const ColumnPlan plan = column_plan(parse_encoding("[data]\nformat = \"csv\"\n[csv]\n" + toml, "test"));
  CellReader cells(plan.columns, plan.where,
                   {LineReader(std::make_unique<std::stringbuf>(text, std::ios::in), "data.csv"), plan.dialect},
                   LabelsIn::kRequired);
  Rows rows;
  while (cells.next()) {
    auto& row = rows.emplace_back();
    for_each_part(cells.cell(*plan.target), plan.columns[*plan.target].separator, [&](std::string_view part) { row.emplace_back(part); });
    row.emplace_back("|");
    for (size_t column = 0; column < *plan.target; ++column) row.emplace_back(cells.cell(column));
  }
  return rows;
}

TEST(CellReader, ColumnsByNameAndNumber) {
  const std::string text = "id,title,tags,body\n1,a title,x|y|,\"two\nlines, \"\"quoted\"\"\"\n2,,z,b\n";
  const Rows expected = {{"x", "y", "|", "a title", "two\nlines, \"quoted\""}, {"z", "|", "", "b"}};
  EXPECT_EQ(cells_of_csv("labels = \"tags\"\nlabel_separator = \"pipe\"\ntext = [\"title\", \"body\"]", text), expected);
  EXPECT_EQ(cells_of_csv("labels = \"3\"\nlabel_separator = \"pipe\"\ntext = [\"2\", \"4\"]", text), expected);
  EXPECT_EQ(cells_of_csv("labels = \"1\"\nlabel_separator = \"comma\"\ntext = [\"2\"]\nheader = false",
                         "\"red, dark blue,\t\",a\n\" , red \",b\n"),
            (Rows{{"red", "dark blue", "|", "a"}, {"red", "|", "b"}}));
  EXPECT_EQ(cells_of_csv("labels = \"1\"\ntext = [\"2\"]\nheader = false", "a|b,c d\n,e\n"),
            (Rows{{"a|b", "|", "c d"}, {"|", "e"}}));
  EXPECT_EQ(cells_of_csv("labels = \"1\"\ntext = [\"2\"]\ndelimiter = \"tab\"", "l\tt\nx\t\"y\n"),
            (Rows{{"x", "|", "\"y"}}));
  EXPECT_EQ(cells_of_csv("labels = \"2\"\ntext = [\"text\"]", "tag,tag,text\nx,y,z\n"), (Rows{{"y", "|", "z"}}));
}

TEST(CellReader, ErrorsNameTheColumn) {
  const auto error = [](const std::string& toml, const std::string& text) {
    return test::error_of([&] { cells_of_csv(toml, text); });
  };
  const std::string tag = "labels = \"tag\"\ntext = [\"text\"]";
  EXPECT_THAT(error(tag, ""), HasSubstr("empty"));
  EXPECT_THAT(error(tag, "tags,text\nx,y\n"),
              HasSubstr("csv.labels: there is no column 'tag' among 2; did you mean 'tags'?"));
  EXPECT_THAT(error(tag, "tag,tag,text\nx,y,z\n"), HasSubstr("the header has the column 'tag' twice"));
  EXPECT_THAT(error("labels = \"3\"\ntext = [\"text\"]", "tags,text\n"), HasSubstr("no column '3'"));
  EXPECT_THAT(error("labels = \"3\"\ntext = [\"1\"]\nheader = false", "a,b\n"),
              HasSubstr("no column '3' among 2; columns count from 1"));
  EXPECT_THAT(error("text = []", "tags,text\n"), HasSubstr("must name the columns"));
}

}  // namespace
}  // namespace modelet::shard
