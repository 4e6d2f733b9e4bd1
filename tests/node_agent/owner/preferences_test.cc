#include "node_agent/owner/preferences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/error_of.h"

namespace modelet::agent {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

std::string preferences_error(const std::string& text) {
  return error_of([&] { parse_preferences(text, "p.toml"); });
}

TEST(Preferences, AllKeys) {
  const Preferences all = parse_preferences(R"(
    cores = 3
    memory_mib = 4096
    link_mbps = 12.5
    hours = "22:00-06:30"
    [back_off]
    tolerated_percent = 5
    pressure_percent = 50.5
    memory_pressure_percent = 40
    return_seconds = 20
    patience_seconds = 600
  )",
                                            "p.toml");
  EXPECT_EQ(all.cores, 3u);
  EXPECT_EQ(all.memory_mib, 4096u);
  EXPECT_EQ(all.link_mbps, 12.5);
  ASSERT_TRUE(all.hours);
  EXPECT_EQ(all.hours->from, 22 * 60);
  EXPECT_EQ(all.hours->to, 6 * 60 + 30);
  EXPECT_EQ(all.back_off.tolerated_percent, 5);
  EXPECT_EQ(all.back_off.pressure_percent, 50.5);
  EXPECT_EQ(all.back_off.memory_pressure_percent, 40);
  EXPECT_EQ(all.back_off.return_seconds, 20);
  EXPECT_EQ(all.back_off.patience_seconds, 600);
}

TEST(Preferences, NothingIsRequired) {
  const Preferences none = parse_preferences("", "p.toml");
  EXPECT_EQ(none.cores, 0u);
  EXPECT_FALSE(none.hours);
  EXPECT_EQ(none.back_off.patience_seconds, 60);
}

TEST(Preferences, WhatIsWrongIsNamed) {
  EXPECT_THAT(preferences_error("\ncorse = 2"), AllOf(HasSubstr("p.toml:2: 'corse'"), HasSubstr("'cores'")));
  EXPECT_THAT(preferences_error("[back_off]\npatience = 2"),
              AllOf(HasSubstr("p.toml:2: 'patience' is not a known key"), HasSubstr("patience_seconds")));
  EXPECT_THAT(preferences_error("back_off = 2"), HasSubstr("write [back_off]"));
  EXPECT_THAT(preferences_error("[cores]"), HasSubstr("must be a whole number"));
  EXPECT_THAT(preferences_error("cores = \"two\""), HasSubstr("must be a whole number"));
  EXPECT_THAT(preferences_error("cores = 1.5"), HasSubstr("must be a whole number"));
  EXPECT_THAT(preferences_error("cores = -1"), HasSubstr("from 0 to 4096"));
  EXPECT_THAT(preferences_error("link_mbps = nan"), HasSubstr("from 0 to"));
  EXPECT_THAT(preferences_error("link_mbps = true"), HasSubstr("must be a number"));
  EXPECT_THAT(preferences_error("link_mbps = 0.01"), HasSubstr("at least 0.1"));
  EXPECT_THAT(preferences_error("[back_off]\nreturn_seconds = 0"), HasSubstr("from 1 to 86400"));
  EXPECT_THAT(preferences_error("cores = 1\ncores = 2"), HasSubstr("p.toml:2"));
  EXPECT_THAT(preferences_error("cores ="), HasSubstr("p.toml:1"));
}

TEST(Preferences, WhoMayLearnFromPrivateData) {
  const Learning none = parse_preferences("", "p.toml").learning;
  EXPECT_TRUE(none.submitters.empty());
  EXPECT_EQ(none.least_owners, 3u);
  EXPECT_FALSE(none.rows);
  const Learning given =
      parse_preferences("[private]\nsubmitters = [\"alice\", \"bob\"]\nleast_owners = 5\nmost_rounds = 700\nbudget = 8\ndelta = 1e-6\nrows = true", "p.toml").learning;
  EXPECT_THAT(given.submitters, testing::ElementsAre("alice", "bob"));
  EXPECT_TRUE(given.owners.empty());
  const std::string key(64, 'A');
  EXPECT_THAT(parse_preferences("[private]\nowners = [\"" + key + "\"]", "p.toml").learning.owners,
              testing::ElementsAre(std::string(64, 'a')));
  EXPECT_EQ(given.least_owners, 5u);
  EXPECT_EQ(none.most_rounds, 0u);
  EXPECT_EQ(given.most_rounds, 700u);
  EXPECT_EQ(none.budget, 0);
  EXPECT_EQ(given.budget, 8);
  EXPECT_EQ(none.delta, 1e-5);
  EXPECT_EQ(given.delta, 1e-6);
  EXPECT_THAT(preferences_error("[private]\ndelta = 0"), HasSubstr("from 1e-15 to 0.1"));
  EXPECT_TRUE(given.rows);
  for (const char* text : {"submitters = \"alice\"", "submitters = [1]", "submitters = [\"\"]", "owners = [1]"})
    EXPECT_THAT(preferences_error("[private]\n" + std::string(text)), HasSubstr("list of names"));
  EXPECT_THAT(preferences_error("[private]\nrows = 1"), HasSubstr("true or false"));
  EXPECT_THAT(preferences_error("private = 1"), HasSubstr("write [private]"));
  EXPECT_THAT(preferences_error("[private]\nleast = 1"), HasSubstr("least"));
}

TEST(Preferences, HoursAreTwoTimes) {
  for (const char* text : {"", "22:00", "22:00-", "22-6", "24:00-06:00", "22:60-06:00", "22:00-06:00 ",
                           "2:00-06:00", "22:00-06:0x", "-1:00-06:00"})
    EXPECT_THAT(preferences_error("hours = \"" + std::string(text) + "\""), HasSubstr("22:00-06:00")) << text;
  EXPECT_THAT(preferences_error("hours = 22"), HasSubstr("22:00-06:00"));
}

TEST(Preferences, DayAndNight) {
  EXPECT_TRUE((Hours{60, 120}.contains(60)));
  EXPECT_FALSE((Hours{60, 120}.contains(120)));
  EXPECT_TRUE((Hours{120, 60}.contains(1439)));
  EXPECT_FALSE((Hours{120, 60}.contains(60)));
  EXPECT_TRUE((Hours{60, 60}.contains(0)));
}

TEST(Preferences, TheFileIsLimited) {
  EXPECT_THAT(error_of([] { read_preferences("/no/such/file"); }),
              AllOf(HasSubstr("/no/such/file"), HasSubstr("--preferences")));
  const std::string large = testing::TempDir() + "/large.toml";
  std::ofstream(large) << std::string(100'000, '#');
  EXPECT_THAT(error_of([&] { read_preferences(large); }), HasSubstr(large));
}

}  // namespace
}  // namespace modelet::agent
