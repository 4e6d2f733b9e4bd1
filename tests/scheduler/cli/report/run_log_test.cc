#include "scheduler/cli/report/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/error_of.h"

namespace modelet::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class RunLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void write_log(const std::string& text) { std::ofstream(folder_ / "log.jsonl") << text; }

  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "run_log_test";
};

TEST_F(RunLogTest, ReadsEvents) {
  write_log("{\"event\":\"started\",\"nodes\":2}\n\n{\"event\":\"finished\",\"checkpoint\":\"x\"}\n");
  const std::vector<json> events = read_run_log(folder_);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(figure_of(events[0], "nodes"), 2);
  EXPECT_EQ(figure_of(events[0], "event"), 0) << "no number";
  EXPECT_EQ(text_of(events[1], "checkpoint"), "x");
  EXPECT_EQ(text_of(events[0], "nodes"), "") << "no text";
  EXPECT_EQ(last_event(events, "started"), events.data());
  EXPECT_EQ(last_event(events, "epoch"), nullptr);
}

TEST_F(RunLogTest, ARunThatWasContinuedHasNotFinished) {
  const json started = {{"event", "started"}}, finished = {{"event", "finished"}};
  EXPECT_FALSE(has_finished({}));
  EXPECT_FALSE(has_finished({started}));
  EXPECT_FALSE(has_finished({finished}));
  EXPECT_TRUE(has_finished({started, finished}));
  EXPECT_FALSE(has_finished({started, finished, started}));
  EXPECT_TRUE(has_finished({started, finished, started, finished}));
}

TEST_F(RunLogTest, SaysWhichLineIsWrong) {
  EXPECT_THAT(test::error_of([&] { read_run_log(folder_ / "none"); }), HasSubstr("no such file"));
  for (const char* wrong : {"{", "[]", "7", "{\"event\":7}", "{\"step\":7}"}) {
    write_log(std::string("{\"event\":\"started\"}\n") + wrong + "\n");
    EXPECT_THAT(test::error_of([&] { read_run_log(folder_); }), HasSubstr("log.jsonl:2: no event")) << wrong;
  }
}

TEST_F(RunLogTest, LeavesOutTheHalfLineOfARunThatWasKilled) {
  write_log("{\"event\":\"started\"}\n{\"event\":\"prog");
  EXPECT_EQ(read_run_log(folder_).size(), 1u);
}

TEST_F(RunLogTest, ShortensWithoutLosingTheEnd) {
  std::vector<json> events = {{{"event", "preparing"}}, {{"event", "started"}}};
  constexpr size_t kSteps = 1001, kMost = 100;
  for (size_t step = 1; step <= kSteps; ++step) events.push_back({{"event", "progress"}, {"step", step}});
  events.push_back({{"event", "checkpoint"}});
  const std::vector<json> kept = shortened(events, kMost);
  EXPECT_EQ(text_of(kept.front(), "event"), "started");
  EXPECT_EQ(text_of(kept.back(), "event"), "checkpoint");
  EXPECT_EQ(figure_of(kept[kept.size() - 2], "step"), kSteps);
  EXPECT_LE(kept.size(), kMost + 2);
  EXPECT_GT(kept.size(), kMost - kMost / 10);
  EXPECT_EQ(shortened(events, kSteps).size(), kSteps + 2);
}

}  // namespace
}  // namespace modelet::cli
