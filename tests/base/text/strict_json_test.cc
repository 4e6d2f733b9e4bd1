#include "base/text/strict_json.h"

#include <gmock/gmock.h>

#include <string>

#include "base/error.h"
#include "tests/error_of.h"
#include "tests/growth.h"

namespace modelet {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(StrictJson, ReadsEveryKindOfValue) {
  const std::string text =
      R"({"a": [1, -2, 2.5, true, null, "x\ny", [], {}], "b": {"c": [[{"d": "e"}]]}, "": 18446744073709551615})";
  EXPECT_EQ(parse_strict_json(text, "f", 6), nlohmann::json::parse(text));
  EXPECT_EQ(parse_strict_json(" 7 ", "f", 1), 7);
}

TEST(StrictJson, RefusesWhatIsAmbiguousOrTooDeep) {
  const auto problem = [](const std::string& text) {
    return error_of([&] { parse_strict_json(text, "f", 3); });
  };
  EXPECT_THAT(problem(R"({"a": 1, "b": {"a": 1}, "a": 2})"), StartsWith("f: the key 'a' appears twice"));
  EXPECT_EQ(problem(R"({"a": 1, "b": {"a": 1}})"), "no error");
  EXPECT_EQ(problem("[[[1]]]"), "no error");
  EXPECT_THAT(problem("[[[[1]]]]"), HasSubstr("nested deeper than 3"));
  EXPECT_THAT(problem(R"({"a": {"b": {"c": {}}}})"), HasSubstr("nested deeper than 3"));
  for (const char* open : {"[", "{\"a\":"})
    EXPECT_THAT(problem(test::repeated(open, 1'000'000)), HasSubstr("nested deeper than 3"));
  for (const char* text : {"", "[", "[1 2]", "{\"a\"}", "[1] 2", "1e999", "\"\xff\"", "nan"})
    EXPECT_THAT(problem(text), StartsWith("f: not valid JSON")) << text;
}

TEST(StrictJson, RefusesTooManyValues) {
  const auto problem = [](const std::string& text) {
    return error_of([&] { parse_strict_json(text, "f", 3); });
  };
  EXPECT_THAT(problem('[' + test::repeated("[],", 1 << 20) + "[]]"), HasSubstr("more than 1048576 values"));
  EXPECT_EQ(problem('[' + test::repeated("1,", 1 << 18) + "1]"), "no error");
}

TEST(StrictJson, OneObjectOrNothing) {
  EXPECT_EQ(parse_json_object(R"({"a": 1})"), nlohmann::json({{"a", 1}}));
  for (const std::string& text :
       {std::string("[1]"), std::string("{"), test::repeated("{\"a\":", 9) + "1" + test::repeated("}", 9)})
    EXPECT_FALSE(parse_json_object(text)) << text;
}

// Each shape took work by the square before, or could.
TEST(StrictJson, WorkIsLinear) {
  const auto grows_linearly = [](const std::string& begin, const std::string& each, const std::string& end) {
    return test::grows_linearly(
        2000, [&](size_t n) { return begin + test::repeated(each, n) + end; },
        [](const std::string& text) { parse_strict_json(text, "f", 4); });
  };
  EXPECT_TRUE(grows_linearly("[", "{},", "{}]"));
  EXPECT_TRUE(grows_linearly("{\"a\":[", "{\"b\":[]},", "1]}"));
  EXPECT_TRUE(grows_linearly("[", "[{}],", "[]]"));
  EXPECT_TRUE(grows_linearly("[", "\"text\",", "1]"));
  EXPECT_TRUE(test::grows_linearly(
      2000,
      [](size_t n) {
        std::string text = "{";
        for (size_t i = 0; i < n; ++i) text += "\"key " + std::to_string(i) + "\": {},";
        return text + "\"\": 1}";
      },
      [](const std::string& text) { parse_strict_json(text, "f", 4); }));
}

}  // namespace
}  // namespace modelet
