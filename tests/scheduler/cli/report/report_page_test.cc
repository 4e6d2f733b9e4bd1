#include "scheduler/cli/report/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "scheduler/dashboard/assets.h"

namespace modelet::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(ReportPageTest, DataCannotEndItsElement) {
  const std::string hostile = "</script><script>alert(1)</script><!--";
  const std::string page = report_page({{"name", hostile}});
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  const std::string begin = "id=\"report\">";
  const size_t from = page.find(begin) + begin.size();
  EXPECT_EQ(json::parse(page.substr(from, page.find("</script>", from) - from)), (json{{"name", hostile}}));
}

// The page asks nobody for anything: its policy forbids it, and there is nothing that would.
TEST(ReportPageTest, IsOneFile) {
  const std::string page = report_page(json::object());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_EQ(std::regex_search(page, std::regex("\n *(import|export .* from) ")), false);
  EXPECT_THAT(page, Not(HasSubstr("src=\"")));
  EXPECT_THAT(page, Not(HasSubstr("<link")));
  EXPECT_THAT(page, HasSubstr("Copyright (c) 2022 Leon Sorokin")) << "the licence of uPlot goes with it";
}

// The modules become one script, so two of them must not have a name in common.
TEST(ReportPageTest, NamesOfItsModulesDiffer) {
  const std::string page = report_page(json::object());
  const std::string script = page.substr(page.find("<script type=\"module\">"));
  const std::regex declared("\n(?:export )?(?:const|let|class|function|async function) (\\w+)");
  std::set<std::string> names;
  for (std::sregex_iterator each(script.begin(), script.end(), declared), end; each != end; ++each)
    EXPECT_TRUE(names.insert((*each)[1]).second) << (*each)[1];
  EXPECT_EQ(names.count("RunSeries") + names.count("CurveChart") + names.count("showReport"), 3u);
}

}  // namespace
}  // namespace modelet::cli
