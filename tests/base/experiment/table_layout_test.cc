#include "base/experiment/table_layout.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/growth.h"

namespace modelet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TableLayout layout_of(const std::vector<std::string>& items) { return parse_table_layout(items); }

std::string layout_error(const std::vector<std::string>& items) {
  try {
    layout_of(items);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TableLayout, ReadsTheNotation) {
  const TableLayout layout = layout_of({"cross:c2*b", "label:click", "skip:id", "bin:i1..i3", "cat:c1..c2,b",
                                        "log:i2", "num:age", "cross:c1*c2*b", "cross:i2*c2"});
  EXPECT_THAT(layout.columns, ElementsAre("click", "id", "i1", "i2", "i3", "c1", "c2", "b", "age"));
  EXPECT_THAT(layout.labels, ElementsAre(0));
  EXPECT_THAT(layout.categories, ElementsAre(5, 6, 7));
  using Number = TableLayout::Number;
  EXPECT_THAT(layout.numbers, ElementsAre(Number{2, NumberKind::kBins}, Number{3, NumberKind::kBins},
                                          Number{4, NumberKind::kBins}, Number{3, NumberKind::kLogarithm},
                                          Number{8, NumberKind::kStandardised}));
  EXPECT_THAT(layout.crosses, ElementsAre(ElementsAre(1, 2), ElementsAre(0, 1, 2), ElementsAre(4, 1)));
}

TEST(TableLayout, ReadsRangesOfNumbersAlone) {
  EXPECT_THAT(layout_of({"label:7", "cat:8..11"}).columns, ElementsAre("7", "8", "9", "10", "11"));
}

TEST(TableLayout, KnowsCriteosColumns) {
  const TableLayout layout = table_layout({}, DataFormat::kCriteo);
  EXPECT_EQ(layout.columns.size(), 40u);
  EXPECT_EQ(layout.columns.back(), "c26");
  EXPECT_THAT(layout.labels, ElementsAre(0));
  EXPECT_EQ(layout.numbers.size(), 13u);
  EXPECT_EQ(layout.categories.size(), 26u);
  EXPECT_THAT(layout.crosses, IsEmpty());
  EXPECT_EQ(table_layout({.columns = {"label:click", "cat:c1..c26"}}, DataFormat::kCriteo).columns.size(),
            27u);
  EXPECT_THROW(table_layout({}, DataFormat::kTable), UsageError);
}

TEST(TableLayout, ErrorsQuoteTheItem) {
  struct Case {
    std::vector<std::string> items;
    const char* what;
  };
  const Case cases[] = {
      {{}, "has no label"},
      {{"cat:a"}, "has no label"},
      {{"label:a"}, "has no feature"},
      {{"num:n", "label:click,buy", "cat:click"}, "has 'click' as a label and as a feature"},
      {{"label:a", "log:a"}, "has 'a' as a label and as a feature"},
      {{"label:a", "cat"}, "'cat' is not KIND:COLUMNS"},
      {{"label:a", "cats:b"}, "'cats:b' has the unknown kind 'cats'; did you mean 'cat'?"},
      {{"label:a", "cat:"}, "'cat:' has an empty name"},
      {{"label:a", "cat:b,,c"}, "has an empty name"},
      {{"label:a", "cat:b1..c3"}, "'cat:b1..c3' has the range 'b1..c3'"},
      {{"label:a", "cat:b3..b1"}, "has the range 'b3..b1'"},
      {{"label:a", "cat:b..c"}, "has the range 'b..c'"},
      {{"label:a", "cat:b1..b99999999999999999999"}, "has the range"},
      {{"label:a", "cat:b1..b5000"}, "has the range"},
      {{"label:a", "cat:b1..b3000", "cat:c1..c3000"}, "is column number 4097"},
      {{"label:a", "cat:b,b"}, "mentions 'b' again as cat"},
      {{"label:a,a", "cat:b"}, "mentions 'a' again as label"},
      {{"label:a", "bin:b", "bin:b"}, "mentions 'b' again as bin"},
      {{"label:a", "cat:b", "skip:c,c"}, "mentions 'c' again as skip"},
      {{"label:a", "bin:b", "cross:a*b"}, "'cross:a*b' crosses 'a', which is neither category nor number"},
      {{"label:a", "cat:b", "cross:b"}, "crosses one column"},
      {{"label:a", "cat:b", "cross:b*b"}, "crosses 'b' with itself"},
      {{"label:a", "cat:b,c", "cross:b*c", "cross:b*c"}, "'cross:b*c' is there twice"},
      {{"label:a", "cat:b", "cross:"}, "crosses '', which is neither category nor number"},
  };
  for (const Case& c : cases) EXPECT_THAT(layout_error(c.items), HasSubstr(c.what));
}

// An experiment of a stranger. A few bytes may stand for thousands of columns, but only once.
TEST(TableLayout, WorkIsLinear) {
  std::string again = "skip:a1..a4000";
  while (again.size() < 4000) again += ",a1..a4000";
  EXPECT_THAT(layout_error({"label:y", again, again}), HasSubstr("'a1' again as skip"));
  const auto columns = [](size_t n) {
    std::vector<std::string> items = {"label:y"};
    std::string cross = "cross:";
    for (size_t i = 0; i < n; ++i) {
      items.push_back((i % 2 == 0 ? "cat:a column " : "bin:a column ") + std::to_string(i));
      cross += (i == 0 ? "a column " : "*a column ") + std::to_string(i);
      if (i > 0) items.push_back("cross:a column 0*a column " + std::to_string(i));
    }
    items.push_back(cross);
    return items;
  };
  EXPECT_TRUE(test::grows_linearly(200, columns, [](const auto& items) { layout_of(items); }));
}

TEST(TableLayout, ErrorsInAnExperimentNameTheLine) {
  const std::string toml =
      "[data]\ntrain = \"a\"\ntest = \"b\"\nformat = \"table\"\n[table]\ncolumns = [\"label:x\", "
      "\"cut:y\"]\n";
  try {
    parse_experiment(toml, "clicks.toml");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("clicks.toml:6: table.columns 'cut:y' has the unknown kind 'cut'"));
  }
}

}  // namespace
}  // namespace modelet
