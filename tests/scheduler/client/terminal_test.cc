// Text that fits a terminal: the progress line of a run, lines of fields, tables.
#include "scheduler/client/terminal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <sstream>

namespace modelet::cli {
namespace {

TEST(ProgressBar, IsFilledAsFarAsTheRunIs) {
  EXPECT_EQ(with_bar(0.0, "step", 17), "[..........] step");
  EXPECT_EQ(with_bar(0.5, "step", 17), "[#####.....] step");
  EXPECT_EQ(with_bar(0.99, "step", 17), "[#########.] step") << "full only at the end";
  EXPECT_EQ(with_bar(1.0, "step", 17), "[##########] step");
  EXPECT_EQ(with_bar(7.0, "step", 17), "[##########] step") << "more steps than were told";
}

TEST(ProgressBar, TakesTheRoomThatIsLeft) {
  EXPECT_EQ(with_bar(0.5, "step", 27), "[##########..........] step");
  EXPECT_EQ(with_bar(0, "step", 500).size(), 47u) << "but not more than 40";
}

TEST(ProgressBar, NeverExceedsTheTerminal) {
  const std::string text(100, 'x');
  for (size_t columns = 0; columns < 150; ++columns) EXPECT_LE(with_bar(0.3, text, columns).size(), columns);
}

TEST(ProgressBar, GoesBeforeTheTextDoes) {
  EXPECT_EQ(with_bar(0.5, "step 5  loss 2.6507", 32), "[#####.....] step 5  loss 2.6507");
  EXPECT_EQ(with_bar(0.5, "step 5  loss 2.6507", 31), "step 5  loss 2.6507");
  EXPECT_EQ(with_bar(0.5, "step 5  loss 2.6507", 19), "step 5  loss 2.6507");
  EXPECT_EQ(with_bar(0.5, "step 5  loss 2.6507", 18), "step 5") << "not loss 2.650";
  EXPECT_EQ(with_bar(0.5, "step 5  loss 2.6507", 6), "step 5");
  EXPECT_EQ(with_bar(0.5, "step 5  loss 2.6507", 5), "step ");
}

TEST(Fields, GoWhereThereIsNoRoom) {
  EXPECT_EQ(fitted("epoch 1/8  P@1 0.5  0:03 of training", 36), "epoch 1/8  P@1 0.5  0:03 of training");
  EXPECT_EQ(fitted("epoch 1/8  P@1 0.5  0:03 of training", 35), "epoch 1/8  P@1 0.5");
  EXPECT_EQ(fitted("\u00e4\u00f6\u00fc  \u00df", 6), "\u00e4\u00f6\u00fc  \u00df")
      << "characters count, not bytes";
  EXPECT_EQ(fitted("\u00e4\u00f6\u00fc  \u00df", 2), "\u00e4\u00f6");
}

TEST(Fields, ContinueOnTheNextLine) {
  EXPECT_EQ(wrapped("demo:  10 features  20 labels", 80), "demo:  10 features  20 labels");
  EXPECT_EQ(wrapped("demo:  10 features  20 labels", 20), "demo:  10 features\n  20 labels");
  EXPECT_EQ(wrapped("checkpoint:  /a/very/long/path  x", 15), "checkpoint:\n  /a/very/long/path\n  x")
      << "a path stays whole";
  EXPECT_EQ(wrapped("", 15), "");
  for (size_t columns = 0; columns < 40; ++columns) {
    std::string joined = wrapped("  a b  c  dd  eeeeeee  f", columns);
    std::erase(joined, '\n');
    std::erase(joined, ' ');
    EXPECT_EQ(joined, "abcddeeeeeeef") << "nothing is lost";
  }
}

Table nodes() {
  Table table({{"node", 3, false}, {"cores", 1}, {"GFLOP/s", 2}});
  table.add({"office-17", "4", "52"});
  table.add({"b\u00e4r", "16", "7"});
  return table;
}

TEST(Table, IsAsWideAsItsCells) {
  EXPECT_EQ(nodes().text(0),
            "node       cores  GFLOP/s\n"
            "office-17      4       52\n"
            "b\u00e4r           16        7\n");
  EXPECT_EQ(nodes().text(25), nodes().text(0));
}

TEST(Table, WhatMattersLeastGoesFirst) {
  EXPECT_EQ(nodes().text(24),
            "node       GFLOP/s\n"
            "office-17       52\n"
            "b\u00e4r              7\n");
  EXPECT_EQ(nodes().text(17), "node\noffice-17\nb\u00e4r\n");
  EXPECT_EQ(nodes().text(8), "node\noffic...\nb\u00e4r\n");
  for (size_t columns = 1; columns < 30; ++columns) {
    std::istringstream lines(nodes().text(columns));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(width_of(line), columns);
  }
}

TEST(Table, LongTextIsCutBeforeColumnsGo) {
  Table table({{"run", 3}, {"state", 1, false}, {"detail", 2, false, 10}});
  table.add({"7", "failed", "node-2 does not answer any more"});
  EXPECT_EQ(table.text(0),
            "run  state   detail\n"
            "  7  failed  node-2 does not answer any more\n");
  EXPECT_EQ(table.text(30),
            "run  state   detail\n"
            "  7  failed  node-2 does no...\n");
  EXPECT_EQ(table.text(23),
            "run  state   detail\n"
            "  7  failed  node-2 ...\n");
  EXPECT_EQ(table.text(22),
            "run  detail\n"
            "  7  node-2 does no...\n");
}

TEST(Terminal, APipeIsNone) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(terminal_of(ends[1]).there());
  ::close(ends[0]);
  ::close(ends[1]);
}

// A pseudo-terminal behaves like any other terminal.
TEST(Terminal, ColoursUnlessTheyAreUnwanted) {
  const int pty = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (pty < 0 || ::grantpt(pty) != 0 || ::unlockpt(pty) != 0) GTEST_SKIP() << "no pseudo-terminals here";
  const int fd = ::open(::ptsname(pty), O_RDWR | O_NOCTTY);
  ASSERT_GE(fd, 0);
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(terminal_of(fd).there());
  EXPECT_TRUE(terminal_of(fd).colour);
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(terminal_of(fd).there());
  EXPECT_FALSE(terminal_of(fd).colour);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(terminal_of(fd).colour);
  const winsize size{.ws_row = 20, .ws_col = 123, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(fd, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(terminal_of(fd).columns(), 123u);
  ::close(fd);
  ::close(pty);
}

}  // namespace
}  // namespace modelet::cli
