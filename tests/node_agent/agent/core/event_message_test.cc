#include "node_agent/agent/core/event_message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace modelet::agent {
namespace {

TEST(EventMessageTest, TheSchedulerNeedsNoJson) {
  using comm::control::EventKind;
  const auto fetching = event_message({{"event", "fetching"}, {"bytes", 30}, {"total_bytes", 120}});
  EXPECT_EQ(fetching.kind, EventKind::Fetching);
  EXPECT_EQ(fetching.done, 0.25);
  EXPECT_EQ(event_message({{"event", "preparing"}, {"done", 0.5}}).done, 0.5);
  const nlohmann::json node = {
      {"node", "a"}, {"compute_seconds", 1}, {"codec_seconds", 2.5}, {"wait_seconds", 3}};
  const auto progress =
      event_message({{"event", "progress"}, {"step", 12}, {"eta_seconds", 99.5}, {"nodes", {node, node}}});
  EXPECT_EQ(progress.kind, EventKind::Progress);
  EXPECT_EQ(progress.step, 12u);
  EXPECT_EQ(progress.seconds_left, 99.5);
  ASSERT_EQ(progress.times.size(), 2u);
  EXPECT_EQ(progress.times[1].compute(), 1);
  EXPECT_EQ(progress.times[1].codec(), 2.5);
  EXPECT_EQ(progress.times[1].wait(), 3);
  EXPECT_EQ(event_message({{"event", "interrupted"}}).kind, EventKind::Interrupted);
  EXPECT_EQ(event_message({{"event", "epoch"}, {"step", 3}}).kind, EventKind::Other);
}

TEST(EventMessageTest, NoPathOfThisMachineIsTold) {
  for (const char* key : {"path", "checkpoint"})
    EXPECT_EQ(nlohmann::json::parse(event_message({{key, "/of/a/checkpoints/step-5"}}).json),
              nlohmann::json({{key, "step-5"}}));
}

}  // namespace
}  // namespace modelet::agent
