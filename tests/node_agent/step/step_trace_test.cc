#include "node_agent/step/step_trace.h"

#include <gtest/gtest.h>

namespace modelet::agent {
namespace {

class SetClock final : public Clock {
 public:
  double now() const override { return time; }
  double time = 0;
};

TEST(StepTraceTest, PhasesFollowEachOtherWithoutAGap) {
  SetClock clock;
  StepTrace trace(clock);
  comm::Meters meters;
  trace.end_phase(TracePhase::kBatch, meters);
  EXPECT_TRUE(trace.spans().empty()) << "it is off";
  clock.time = 10;
  trace.begin_step(7, meters);
  clock.time = 11;
  meters.encode_seconds = 0.25;
  meters.decode_seconds = 0.25;
  trace.end_phase(TracePhase::kInput, meters);
  clock.time = 14;
  meters.wait_seconds = 2;
  trace.end_phase(TracePhase::kCollect, meters);
  trace.end_step();
  trace.end_phase(TracePhase::kMaintain, meters);
  const auto spans = trace.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].step, 7u);
  EXPECT_EQ(spans[0].began, 10);
  EXPECT_EQ(spans[0].seconds, 1);
  EXPECT_EQ(spans[0].codec, 0.5);
  EXPECT_EQ(spans[1].began, spans[0].began + spans[0].seconds);
  EXPECT_EQ(spans[1].seconds, 3);
  EXPECT_EQ(spans[1].wait, 2);
  EXPECT_EQ(spans[1].codec, 0);
  EXPECT_TRUE(trace.spans().empty());
}

TEST(StepTraceTest, IsBounded) {
  SetClock clock;
  StepTrace trace(clock);
  trace.begin_step(1, {});
  for (size_t i = 0; i < StepTrace::kMostSpans + 10; ++i) trace.end_phase(TracePhase::kInput, {});
  EXPECT_EQ(trace.spans().size(), StepTrace::kMostSpans);
}

TEST(StepTraceTest, EveryPhaseHasAName) {
  for (size_t phase = 0; phase < kTracePhases; ++phase)
    EXPECT_STRNE(spelling(static_cast<TracePhase>(phase)), "");
}

}  // namespace
}  // namespace modelet::agent
