#include "scheduler/client/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/error_of.h"

namespace modelet::cli {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

constexpr double kFirst = 1e9;  // seconds since 1970
constexpr int64_t kStepLength = 1000;

// Two ranks do the same steps. Rank 1's calendar is `ahead` microseconds ahead, and it computes for so long.
json rank_events(int rank, int64_t ahead, int64_t compute, int steps = 3) {
  json spans = json::array();
  for (int step = 0; step < steps; ++step) {
    const int64_t begin = step * kStepLength;
    spans.push_back({step + 1, 0, begin, compute, 0, 5});
    spans.push_back({step + 1, 1, begin + compute, kStepLength - compute, kStepLength - compute - 7, 7});
  }
  return {{"event", "trace"},
          {"node", "node" + std::to_string(rank)},
          {"rank", static_cast<uint64_t>(rank)},
          {"ranks", 2U},
          {"part", 0U},
          {"parts", 1U},
          {"began", kFirst + static_cast<double>(ahead) * 1e-6},
          {"phases", {"forward", "collect"}},
          {"spans", spans}};
}

struct Slice {
  int64_t began = 0, length = 0;
};
std::map<std::string, std::vector<Slice>> slices(const json& file, int rank) {
  std::map<std::string, std::vector<Slice>> found;
  for (const json& event : file.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("tid") == rank)
      found[event.at("name")].push_back({event.at("ts"), event.at("dur")});
  return found;
}

// As when a span's beginning is rounded down, and its length up.
TEST(ChromeTraceTest, RoundingMakesNoOverlap) {
  json event = rank_events(0, 0, 900);
  event["ranks"] = 1U;
  for (json& span : event["spans"]) span[3] = span[3].get<int64_t>() + 1;
  ChromeTrace trace;
  trace.add(event);
  const auto found = slices(json::parse(trace.text()), 0);
  for (size_t step = 0; step < 3; ++step) {
    const auto end_of = [&](const std::string& name, size_t number) {
      const Slice& slice = found.at(name).at(number);
      return slice.began + slice.length;
    };
    EXPECT_EQ(end_of("forward", step), found.at("collect").at(step).began);
    const std::string name = "step " + std::to_string(step + 1);
    EXPECT_EQ(end_of("collect", step), end_of(name, 0));
    if (step < 2) {
      EXPECT_EQ(end_of(name, 0), found.at("step " + std::to_string(step + 2)).at(0).began);
    }
  }
}

TEST(ChromeTraceTest, PhasesAddUpToTheirStep) {
  ChromeTrace trace;
  trace.add(rank_events(0, 0, 900));
  EXPECT_FALSE(trace.is_complete());
  trace.add(rank_events(1, 0, 400));
  EXPECT_TRUE(trace.is_complete());
  EXPECT_EQ(trace.steps(), 3u);
  EXPECT_DOUBLE_EQ(trace.step_seconds(), 1e-3);
  const json file = json::parse(trace.text());
  for (int rank : {0, 1}) {
    auto found = slices(file, rank);
    const Slice second = found.at("step 2").at(0);
    EXPECT_EQ(second.length, found.at("forward").at(1).length + found.at("collect").at(1).length);
    EXPECT_EQ(second.began, found.at("forward").at(1).began);
    EXPECT_EQ(second.began + second.length, found.at("step 3").at(0).began);
  }
}

TEST(ChromeTraceTest, NothingArrivesBeforeItWasSent) {
  for (const int64_t ahead :
       {int64_t{-5'000'000}, int64_t{-300}, int64_t{0}, int64_t{300}, int64_t{7'000'000}}) {
    ChromeTrace trace;
    trace.add(rank_events(0, 0, 900));
    trace.add(rank_events(1, ahead, 400));
    const json file = json::parse(trace.text());
    auto zeroth = slices(file, 0), first = slices(file, 1);
    for (size_t step = 0; step < 3; ++step) {
      const Slice& one = zeroth.at("collect").at(step);
      const Slice& other = first.at("collect").at(step);
      EXPECT_LE(one.began, other.began + other.length) << ahead;
      EXPECT_LE(other.began, one.began + one.length) << ahead;
    }
    // Clocks that may be right stay as they are.
    const auto moved = file["otherData"]["clocks_moved_us"]["1"].get<double>();
    if (std::abs(ahead) <= 100) {
      EXPECT_EQ(moved, 0);
    }
    if (ahead > 1000) {
      EXPECT_NEAR(moved, static_cast<double>(-ahead), static_cast<double>(kStepLength));
    }
  }
}

// Readers drop what lies before zero.
TEST(ChromeTraceTest, NothingBeginsBeforeZero) {
  json earlier = rank_events(1, 7'000'000, 400, 4);  // a clock that is moved back, and a step more at the beginning
  for (json& span : earlier["spans"]) span[0] = span[0].get<uint64_t>() - 1;
  ChromeTrace trace;
  trace.add(rank_events(0, 0, 900));
  trace.add(earlier);
  const json file = json::parse(trace.text());
  EXPECT_EQ(slices(file, 1).at("step 0").at(0).began, 0);
  EXPECT_GT(slices(file, 0).at("step 1").at(0).began, 0);
}

TEST(ChromeTraceTest, WhatMakesNoSenseIsAnError) {
  ChromeTrace trace;
  trace.add({{"event", "progress"}});
  EXPECT_EQ(trace.ranks_heard(), 0u);
  EXPECT_FALSE(trace.is_complete());
  const auto wrong = [&](const char* key, const json& value) {
    json event = rank_events(0, 0, 900);
    event[key] = value;
    return error_of([&] { trace.add(event); });
  };
  EXPECT_THAT(wrong("rank", 2U), HasSubstr("no such rank"));
  EXPECT_THAT(wrong("ranks", 100000U), HasSubstr("no such rank"));
  EXPECT_THAT(wrong("parts", 0U), HasSubstr("no such rank or part"));
  EXPECT_THAT(wrong("spans", {{1, 9, 0, 1, 0, 0}}), HasSubstr("no such phase"));
  EXPECT_THAT(wrong("spans", {{1, 0, "x", 1, 0, 0}}), HasSubstr("whole numbers"));
  EXPECT_THAT(wrong("spans", {{1, 0}}), HasSubstr("whole numbers"));
  EXPECT_THAT(wrong("node", 7), HasSubstr("an event 'trace'"));
}

}  // namespace
}  // namespace modelet::cli
