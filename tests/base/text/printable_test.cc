// Text from outside: which of it may be logged, kept and shown.
#include "base/text/printable.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace modelet {
namespace {

TEST(Printable, LeavesPlainTextAlone) {
  for (const char* text : {"", "a", "/data/größe/数据/🙂.txt", "50 % of \"that\" \\ C:\\x"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatSteersATerminalOrForgesALine) {
  EXPECT_EQ(printable("ok\n2026-01-01 node 'b' joined"), "ok\\n2026-01-01 node 'b' joined");
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\x07"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(printable("a\tb\rc\x7f"), "a\\tb\\rc\\x7f");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\x9b31m")
      << "the same sequence in C1";
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "gpj.exe"),
            "\\u202egpj.exe");
  EXPECT_EQ(printable("a\xe2\x80\xa8"
                      "b"),
            "a\\u2028b");
}

TEST(Printable, EscapesWhatIsNoUtf8) {
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("a\xc3"), "a\\xc3") << "a character cut in two";
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "an overlong form";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "past the last character";
}

TEST(Printable, CutsBetweenCharacters) {
  const std::string text = "aä€🙂z";  // 1, 2, 3, 4, 1 bytes
  EXPECT_EQ(printable(text, 11), text);
  EXPECT_EQ(printable(text, 10), "aä€...");
  EXPECT_EQ(printable(text, 9), "aä€...");
  EXPECT_EQ(printable(text, 8), "aä...");
  EXPECT_EQ(printable(text, 5), "a...");
  EXPECT_EQ(printable(text, 3), "...");
}

// For any bytes the result is one line, short enough, unchanged by a second call, and valid UTF-8, without
// which JSON would throw.
TEST(Printable, HoldsForAnyBytes) {
  Rng rng(5);
  for (int i = 0; i < 20000; ++i) {
    std::string text(rng.below(40), ' ');
    for (char& c : text) c = static_cast<char>(rng.below(3) == 0 ? rng.below(256) : 0x80 + rng.below(128));
    const size_t most = 3 + rng.below(60);
    const std::string shown = printable(text, most);
    ASSERT_LE(shown.size(), most);
    ASSERT_EQ(printable(shown), shown);
    ASSERT_NO_THROW((void)nlohmann::json(shown).dump());
  }
}

}  // namespace
}  // namespace modelet
