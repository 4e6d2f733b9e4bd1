#include "base/system/clock.h"

#include <gtest/gtest.h>

namespace modelet {
namespace {

using namespace std::chrono;

TEST(UtcText, IsIso8601WithMilliseconds) {
  EXPECT_EQ(utc_text(system_clock::time_point()), "1970-01-01T00:00:00.000Z");
  const sys_days day = 2026y / November / 22;
  EXPECT_EQ(utc_text(day + 23h + 46min + 44s + 5ms + 999us), "2026-11-22T23:46:44.005Z");
}

}  // namespace
}  // namespace modelet
