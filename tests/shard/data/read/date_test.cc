#include "shard/data/read/date.h"

#include <gtest/gtest.h>

namespace modelet::shard {
namespace {

TEST(Date, PartsAreThoseOfTheCalendar) {
  const auto date = parse_date("2026-11-30");
  ASSERT_TRUE(date);
  EXPECT_EQ(date->year, 2026);
  EXPECT_EQ(date->month, 11u);
  EXPECT_EQ(date->day, 30u);
  EXPECT_EQ(date->weekday, 0u);  // a Monday
  EXPECT_FALSE(date->hour);
  EXPECT_EQ(date->days, 20787);  // 1796083200 / 86400
  EXPECT_EQ(parse_date("1970-01-01")->days, 0);
  EXPECT_EQ(parse_date("1970/01/01")->weekday, 3u);
  for (const char* text : {"2026-11-30T18:00", "2026-11-30 18:00:00", "2026-11-30T18:00:00.25Z",
                           "2026-11-30T18:00:00+01:00", "2026-11-30 18:00:00 -0100", "2026-11-30T18:00+02"}) {
    const auto at = parse_date(text);
    ASSERT_TRUE(at) << text;
    EXPECT_EQ(at->hour, 18u) << text;
    EXPECT_EQ(at->days, 20787.75) << text;
  }
}

TEST(Date, OtherTextIsNone) {
  for (const char* text : {"", "2026", "2026-11", "2026-11-31", "2026-02-29", "2026-13-01", "0000-01-01", "2026-11/30",
                           "30.11.2026", "2026-11-30T", "2026-11-30T25:00", "2026-11-30T09:61", "2026-11-30 09",
                           "2026-11-30T09:41:00.", "2026-11-30T09:41x", "2026-11-30T09:41+1", "20261130", "12026-11-30"})
    EXPECT_FALSE(parse_date(text)) << text;
}

}  // namespace
}  // namespace modelet::shard
