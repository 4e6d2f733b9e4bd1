// The progress line of a run on a terminal.
#include <gtest/gtest.h>

#include "scheduler/cli/report.h"

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

}  // namespace
}  // namespace modelet::cli
