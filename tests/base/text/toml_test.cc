#include "base/text/toml.h"

#include <gmock/gmock.h>

#include <string>

#include "tests/error_of.h"
#include "tests/growth.h"

namespace modelet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string problem(const std::string& text) {
  try {
    parse_toml(text);
  } catch (const toml::parse_error& error) {
    return std::string(error.description()) + " at " + std::to_string(error.source().begin.line);
  }
  return "no error";
}

TEST(Toml, RefusesDepthBeforeItIsParsed) {
  const std::string deep = "a" + test::repeated(".a", 50'000), spaced = "a" + test::repeated(" . a", 50'000),
                    quoted = "a" + test::repeated(".\"a\"", 50'000);
  for (const std::string& key : {deep, spaced, quoted})
    for (const std::string& text : {key + " = 1", "[" + key + "]", "[[" + key + "]]", "x = {" + key + " = 1}",
                                    "x = [\n{y = 2, " + key + " = 1}]"})
      EXPECT_THAT(problem("# a.b\n" + text), HasSubstr("nested deeper than 16")) << text.substr(0, 20);
  for (const char* open : {"[", "{a=", "[{b.c=", "{a.b.c.d=["})
    EXPECT_THAT(problem("x = " + test::repeated(open, 50'000)), HasSubstr("nested deeper than 16"));
  EXPECT_THAT(problem("a = 1\n\n" + deep + " = 1"), HasSubstr("at 3"));
}

// A string that only seems to end, or to go on, hides nothing.
TEST(Toml, KnowsWhereStringsEnd) {
  const std::string key = "a" + test::repeated(".a", 50'000) + " = 1";
  for (const char* string :
       {R"("")", R"("\"")", R"("\\")", R"('\')", R"("""x"""")", R"("""x""""")", R"("""\"""")", R"('''x'''')",
        R"('''x''''')", R"('''\''')", R"("#")", "\"\"\"\n\"\"\n\"\"\"", R"("'")", R"("'''")", R"('"""')"})
    EXPECT_THAT(problem(std::string("x = {s = ") + string + ", " + key + "}"), HasSubstr("nested deeper"))
        << string;
  EXPECT_THAT(problem("x = \"no end\n" + key), HasSubstr("nested deeper"));
  const std::string dots = test::repeated(".[{", 100);
  for (const std::string& text :
       {"a = \"" + dots + "\"", "a = '" + dots + "'", "a = \"\"\"\n" + dots + "\n\"\"\"",
        "a = '''" + dots + "'''", "a = 1 # " + dots,
        "a = [1.5, 2.5, \"" + dots + "\", 1979-05-27T07:32:00.5]\n[b.c]\n\"" + dots + "\".d = {e.f = 1}"})
    EXPECT_EQ(problem(text), "no error") << text;
}

TEST(Toml, WorkIsLinear) {
  for (const char* line : {"k{} = 1\n", "[t{}]\n", "a.b.k{} = \"text\"\n", "[[t]]\nk{} = [1, 2]\n"})
    EXPECT_TRUE(test::grows_linearly(
        200,
        [&](size_t n) {
          std::string text;
          for (size_t i = 0; i < n; ++i) {
            text += line;
            text.replace(text.rfind("{}"), 2, std::to_string(i));
          }
          return text;
        },
        [](const std::string& text) { parse_toml(text); }))
        << line;
}

TEST(Toml, AFileSaysWhereAndWhatIsWanted) {
  EXPECT_THAT(test::error_of([] { parse_toml_file("a = 1\nb = True\n", "x.toml", "a list is TOML"); }),
              AllOf(StartsWith("x.toml:2:5: "), HasSubstr("; a list is TOML, with quotes around texts")));
}

}  // namespace
}  // namespace modelet
