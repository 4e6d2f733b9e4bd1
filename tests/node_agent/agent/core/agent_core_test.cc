// What an agent decides, event by event.
#include "node_agent/agent/core/agent_core.h"

#include <gmock/gmock.h>

#include "tests/comm/control/samples.h"
#include "tests/node_agent/agent/core/agent_core_harness.h"

namespace modelet::agent::test {
namespace {

using msg::Outcome;

TEST(AgentCore, AsksToBeRegisteredUntilItIs) {
  Driver agent;
  agent.pass(0);
  EXPECT_EQ(agent.the<msg::RegisterT>().name, "alpha");
  agent.pass(0.1);
  EXPECT_FALSE(agent.has<Send>());
  agent.pass(0.2);
  EXPECT_EQ(agent.the<msg::RegisterT>().run, 0u);
  agent.hear(registered());
  agent.pass(0);
  EXPECT_EQ(agent.the<msg::HeartbeatT>().node, 3u);
}

TEST(AgentCore, LearnsWhereTheStoreIsWheneverItMoves) {
  Driver agent;
  auto message = registered();
  for (const uint16_t port : {5571, 5571, 6000}) {
    message.data_port = port;
    agent.pass(0.2);
    agent.hear(message);
    const auto moved = agent.all<StoreAt>();
    agent.handle(ConnectionLost{});
    if (port == 5571 && agent.step++ > 0) {
      EXPECT_TRUE(moved.empty()) << "known";
    } else {
      EXPECT_EQ(moved.at(0).port, port);
    }
  }
}

TEST(AgentCore, NumbersItsHeartbeatsAndSaysWhatItWorksFor) {
  Driver agent;
  agent.join();
  agent.train(7, 2);
  agent.step = 40;
  agent.pass(2);
  const auto first = agent.the<msg::HeartbeatT>();
  EXPECT_EQ(first.run, 7u);
  EXPECT_EQ(first.epoch, 2u);
  EXPECT_EQ(first.step, 40u);
  agent.pass(2);
  EXPECT_EQ(agent.the<msg::HeartbeatT>().number, first.number + 1);
}

TEST(AgentCore, DoesARunFromPrepareToDone) {
  Driver agent;
  agent.join();
  agent.hear(prepare(7, 1));
  EXPECT_EQ(agent.all<PrepareJob>().at(0).prepare.run, 7u);
  agent.job(prepared(7, 1));
  EXPECT_EQ(agent.the<msg::PreparedT>().run, 7u);
  agent.hear(start(7, 1));
  EXPECT_EQ(agent.all<StartJob>().at(0).start.endpoints.size(), 2u);
  agent.job(event(7, "one"));
  EXPECT_EQ(agent.the<msg::RunEventT>().epoch, 1u);
  agent.job(done(7, 1));
  EXPECT_EQ(agent.the<msg::RunDoneT>().outcome, Outcome::Ok);
  EXPECT_FALSE(agent.the<msg::RunDoneT>().retry);
  EXPECT_FALSE(agent.core.has_job());
}

TEST(AgentCore, OnlyStepsOfTheRunAreTraced) {
  Driver agent;
  agent.join();
  agent.hear(prepare(7, 1));
  agent.job(prepared(7, 1));
  agent.hear(msg::TraceT{{}, 7, 1, 50});
  EXPECT_EQ(agent.ignored(), "a request to trace") << "it does not train yet";
  agent.hear(start(7, 1));
  agent.hear(msg::TraceT{{}, 7, 2, 50});
  EXPECT_EQ(agent.ignored(), "a request to trace") << "of another group";
  agent.hear(msg::TraceT{{}, 7, 1, 50});
  EXPECT_EQ(agent.all<TraceJob>().at(0).steps, 50u);
}

TEST(AgentCore, WhatComesTwiceHasNoEffect) {
  Driver agent;
  agent.join();
  agent.hear(prepare(7, 1));
  agent.hear(prepare(7, 1));
  EXPECT_EQ(agent.ignored(), "a new run");
  agent.job(prepared(7, 1));
  agent.hear(start(7, 1));
  agent.hear(start(7, 1));
  EXPECT_EQ(agent.ignored(), "a start");
  agent.hear(msg::StopT{{}, 7, 1});
  EXPECT_TRUE(agent.has<StopJob>());
  agent.hear(msg::StopT{{}, 7, 1});
  EXPECT_EQ(agent.ignored(), "a stop");
  agent.hear(msg::AbortT{{}, 7, "enough", 1});
  EXPECT_TRUE(agent.has<AbortJob>());
  agent.hear(msg::AbortT{{}, 7, "enough", 1});
  EXPECT_EQ(agent.ignored(), "an abort");
  agent.job(done(7, 1, Outcome::Failed));
  agent.job(done(7, 1, Outcome::Failed));
  EXPECT_TRUE(agent.actions.empty());
  agent.hear(prepare(7, 1));  // this epoch has ended
  EXPECT_EQ(agent.ignored(), "a new run");
}

TEST(AgentCore, EarlierEpochsHaveNoEffect) {
  Driver agent;
  agent.join();
  agent.train(7, 3);
  agent.hear(prepare(7, 2));
  EXPECT_EQ(agent.ignored(), "a new run");
  agent.hear(msg::StopT{{}, 7, 2});
  EXPECT_EQ(agent.ignored(), "a stop");
  agent.hear(msg::AbortT{{}, 7, "late", 2});
  EXPECT_EQ(agent.ignored(), "an abort");
  agent.hear(msg::AbortT{{}, 8, "another run", 0});
  EXPECT_EQ(agent.ignored(), "an abort");
  agent.job(done(7, 2));
  EXPECT_TRUE(agent.core.has_job());
  agent.hear(msg::StopT{{}, 7, 0});  // for any epoch
  EXPECT_TRUE(agent.has<StopJob>());
}

// Every kind of message, of a run for which the agent does not work. What is not ignored is named here.
TEST(AgentCore, MessagesAboutOtherRunsAreCounted) {
  int ignored = 0;
  for (const auto& message : modelet::test::messages_from_scheduler()) {
    const bool is_about_the_agent = std::holds_alternative<msg::RegisteredT>(message) ||
                                    std::holds_alternative<msg::RegisterAgainT>(message) ||
                                    std::holds_alternative<msg::RefusedT>(message);
    const bool is_answered = std::holds_alternative<msg::PrepareT>(message) ||  // by a refusal
                             std::holds_alternative<msg::StableT>(message) ||   // its files may go
                             std::holds_alternative<msg::AdmitT>(message);      // others may have its files
    if (is_about_the_agent) continue;
    Driver agent;
    agent.join();
    agent.train(7, 2);
    std::visit([&](const auto& any) { agent.hear(any); }, message);
    EXPECT_EQ(agent.ignored().empty(), is_answered) << "alternative " << message.index();
    EXPECT_TRUE(agent.core.has_job());
    ignored += !agent.ignored().empty();
  }
  EXPECT_GT(ignored, 10);
}

TEST(AgentCore, AStartBelongsToItsEpochAndToAPreparedJob) {
  Driver agent;
  agent.join();
  agent.hear(prepare(7, 2));
  agent.hear(start(7, 2));
  EXPECT_FALSE(agent.has<StartJob>());
  agent.job(prepared(7, 2));
  agent.hear(start(7, 1));
  EXPECT_FALSE(agent.has<StartJob>());
  agent.hear(start(7, 2, 3));  // for another number of ranks
  EXPECT_THAT(agent.all<AbortJob>().at(0).reason, testing::HasSubstr("makes no sense"));
}

TEST(AgentCore, ALaterEpochEndsTheJobAndWaitsForItsEnd) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.hear(prepare(7, 2));
  EXPECT_TRUE(agent.has<AbortJob>());
  EXPECT_FALSE(agent.has<PrepareJob>());
  agent.pass(2);
  EXPECT_EQ(agent.the<msg::HeartbeatT>().epoch, 2u);
  agent.job(event(7));  // of a group that has been replaced
  EXPECT_TRUE(agent.actions.empty());
  agent.hear(prepare(7, 3));  // a third group, before the first has ended
  EXPECT_TRUE(agent.actions.empty());
  agent.job(done(7, 1, Outcome::Failed, "aborted"));
  EXPECT_FALSE(agent.has<Send>());  // the end of epoch 1 is not reported
  EXPECT_EQ(agent.all<PrepareJob>().at(0).prepare.epoch, 3u);
  agent.job(done(7, 3));
  EXPECT_EQ(agent.the<msg::RunDoneT>().epoch, 3u);
}

TEST(AgentCore, WhatWaitsForAnEndingJobCanBeStoppedAndAborted) {
  for (const bool stop : {true, false}) {
    Driver agent;
    agent.join();
    agent.train(7, 1);
    agent.hear(prepare(7, 2));
    if (stop)
      agent.hear(msg::StopT{{}, 7, 2});
    else
      agent.hear(msg::AbortT{{}, 7, "enough", 2});
    const auto end = agent.the<msg::RunDoneT>();
    EXPECT_EQ(end.epoch, 2u);
    EXPECT_EQ(end.outcome, Outcome::Failed);
    EXPECT_EQ(end.retry, !stop);
    agent.job(done(7, 1, Outcome::Failed));
    EXPECT_FALSE(agent.has<PrepareJob>());
    EXPECT_FALSE(agent.core.has_job());
  }
}

TEST(AgentCore, AnotherRunWaitsForAnAbortedJobButNotForOneAtWork) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.hear(prepare(8, 1));
  EXPECT_EQ(agent.the<msg::RunDoneT>().run, 8u);
  EXPECT_TRUE(agent.the<msg::RunDoneT>().retry);
  agent.hear(msg::AbortT{{}, 7, "enough", 1});
  agent.hear(prepare(9, 1));
  EXPECT_TRUE(agent.actions.empty());
  agent.hear(prepare(10, 1));
  EXPECT_EQ(agent.the<msg::RunDoneT>().run, 10u);
  agent.job(done(7, 1, Outcome::Failed, "enough"));
  EXPECT_EQ(agent.the<msg::RunDoneT>().run, 7u);
  EXPECT_TRUE(agent.the<msg::RunDoneT>().retry);
  EXPECT_EQ(agent.all<PrepareJob>().at(0).prepare.run, 9u);
}

TEST(AgentCore, AFailureOfTheUserIsNotTriedAgain) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  auto failed = done(7, 1, Outcome::Failed, "no such file");
  failed.user_error = true;
  agent.hear(msg::AbortT{{}, 7, "enough", 1});
  agent.job(failed);
  EXPECT_FALSE(agent.the<msg::RunDoneT>().retry);
}

// ---- a scheduler that is away

TEST(AgentCore, ASilentSchedulerStopsNobody) {
  Driver agent;
  agent.join();
  agent.train(7, 4);
  agent.pass(6);
  EXPECT_FALSE(agent.has<AbortJob>());
  EXPECT_FALSE(agent.core.is_registered());
  const auto again = agent.the<msg::RegisterT>();
  EXPECT_EQ(again.run, 7u);
  EXPECT_EQ(again.epoch, 4u);
  agent.job(event(7));
  EXPECT_FALSE(agent.has<Send>());
  EXPECT_TRUE(agent.core.has_job());
}

TEST(AgentCore, SaysAgainInOrderWhatWasNotConfirmed) {
  Driver agent;
  agent.join();
  agent.hear(prepare(7, 1));
  agent.job(prepared(7, 1));
  agent.confirm();
  agent.hear(start(7, 1));
  agent.job(event(7, "one"));
  agent.hear(msg::RegisterAgainT{});
  agent.job(event(7, "two"));
  agent.handle(Held{kPool, held(7, 1, 100)});
  agent.job(done(7, 1));
  agent.pass(1);
  EXPECT_EQ(agent.the<msg::RegisterT>().run, 0u);  // its report about the end follows
  agent.hear(registered());                        // the scheduler was restarted
  const auto sent = agent.all<Send>();
  ASSERT_EQ(sent.size(), 4u);  // Prepared is confirmed
  const auto first = std::get<msg::RunEventT>(sent[0].message),
             second = std::get<msg::RunEventT>(sent[1].message);
  EXPECT_EQ(first.json, "one");
  EXPECT_EQ(second.json, "two");
  EXPECT_EQ(second.number, first.number + 1);
  EXPECT_EQ(std::get<msg::SnapshotHeldT>(sent[2].message).step, 100u);
  EXPECT_EQ(std::get<msg::RunDoneT>(sent[3].message).run, 7u);
  agent.hear(registered());  // answers an earlier question
  EXPECT_FALSE(agent.has<Send>());
  agent.confirm();
  agent.handle(ConnectionLost{});
  agent.pass(1);
  EXPECT_EQ(agent.the<msg::RegisterT>().run, 0u);
  agent.hear(registered());
  EXPECT_FALSE(agent.has<Send>());
}

TEST(AgentCore, OnlyALaterHeartbeatConfirms) {
  Driver agent;
  agent.join();
  agent.pass(2);
  const uint64_t before = agent.the<msg::HeartbeatT>().number;
  agent.train(7, 1);
  agent.hear(msg::AliveT{{}, before});
  agent.hear(msg::AliveT{{}, before + 5});  // a heartbeat that was never sent
  agent.hear(msg::AliveT{{}, 0});
  agent.handle(ConnectionLost{});
  agent.pass(1);
  agent.hear(registered());
  EXPECT_EQ(agent.sent<msg::PreparedT>().size(), 1u);
  agent.hear(msg::AliveT{{}, before});  // over the old connection: confirms nothing that was sent again
  agent.handle(ConnectionLost{});
  agent.pass(1);
  agent.hear(registered());
  EXPECT_EQ(agent.sent<msg::PreparedT>().size(), 1u);
}

TEST(AgentCore, ForAnotherPoolTheRunIsOverAndForgotten) {
  Driver agent;
  agent.join();
  agent.train(7, 3);
  agent.job(event(7));
  agent.hear(msg::RegisterAgainT{});
  agent.pass(1);
  agent.hear(registered(kOtherPool));
  EXPECT_TRUE(agent.has<AbortJob>());
  EXPECT_FALSE(agent.has<Send>());
  agent.pass(2);
  EXPECT_EQ(agent.the<msg::HeartbeatT>().run, 0u);
  agent.hear(prepare(7, 1));  // another run with this number
  agent.handle(Held{kPool, held(7, 3, 100)});
  EXPECT_FALSE(agent.has<Send>());
  agent.job(done(7, 3, Outcome::Failed));
  EXPECT_FALSE(agent.has<Send>());
  EXPECT_EQ(agent.all<PrepareJob>().at(0).prepare.epoch, 1u);
}

TEST(AgentCore, ASchedulerThatHadLostThisAgentDecidesAboutTheRun) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.hear(msg::RegisterAgainT{});
  EXPECT_FALSE(agent.has<AbortJob>());
  agent.pass(1);
  agent.hear(registered());
  agent.hear(msg::AbortT{{}, 7, "goes on without you", 1});
  EXPECT_TRUE(agent.has<AbortJob>());
}

TEST(AgentCore, ARefusalEndsTheAgent) {
  Driver agent;
  agent.pass(0);
  agent.hear(msg::RefusedT{{}, "an agent of that name is at work"});
  EXPECT_EQ(agent.all<EndAgent>().at(0).why, EndAgent::Why::kRefused);
}

// ---- snapshots and peers

TEST(AgentCore, PassesOnWhatIsHeldStableAndMissed) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.handle(Held{kPool, held(7, 1, 100)});
  EXPECT_EQ(agent.the<msg::SnapshotHeldT>().step, 100u);
  agent.hear(msg::StableT{{}, 7, 1, 100});
  const auto drop = agent.all<DropSnapshots>().at(0);
  EXPECT_EQ(drop.pool, kPool);
  EXPECT_EQ(drop.run, 7u);
  EXPECT_EQ(drop.step, 100u);
  msg::AdmitT admit;
  admit.run = 5;
  agent.hear(std::move(admit));
  EXPECT_EQ(agent.all<AdmitHolders>().at(0).message.run, 5u);
  agent.job(msg::PeerMissedT{{}, 7, 1, 1, "its connection is closed"});
  EXPECT_EQ(agent.the<msg::PeerMissedT>().rank, 1u);
  EXPECT_TRUE(agent.core.has_job());
  agent.hear(prepare(7, 2));
  agent.job(msg::PeerMissedT{{}, 7, 1, 0, "its connection is closed"});
  EXPECT_TRUE(agent.actions.empty());
}

TEST(AgentCore, WhatAHolderWasToldBeforeIsIgnored) {
  Driver agent;
  agent.join();
  const auto hear_admit = [&](uint32_t epoch) {
    msg::AdmitT admit;
    admit.run = 5;
    admit.epoch = epoch;
    agent.hear(std::move(admit));
    return agent.has<AdmitHolders>();
  };
  const auto hear_stable = [&](uint64_t step, uint32_t epoch = 2) {
    agent.hear(msg::StableT{{}, 5, epoch, step});
    return agent.has<DropSnapshots>();
  };
  EXPECT_TRUE(hear_admit(2));
  EXPECT_TRUE(hear_admit(2));
  EXPECT_FALSE(hear_admit(1));
  EXPECT_EQ(agent.ignored(), "a list of nodes that may have files");
  EXPECT_TRUE(hear_stable(20));
  EXPECT_TRUE(hear_stable(20));
  EXPECT_FALSE(hear_stable(10));
  EXPECT_EQ(agent.ignored(), "a stable step");
  EXPECT_TRUE(hear_stable(10, 3)) << "a later group has gone back";
  EXPECT_FALSE(hear_stable(20, 2));
}

// ---- leaving

TEST(AgentCore, WorksOnUntilItIsReleased) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.handle(AskedToLeave{60, "SIGTERM"});
  EXPECT_EQ(agent.the<msg::LeaveRequestT>().seconds, 60);
  EXPECT_FALSE(agent.has<StopJob>());
  agent.hear(msg::StopT{{}, 7, 1});
  agent.job(done(7, 1, Outcome::Interrupted));
  EXPECT_EQ(agent.the<msg::RunDoneT>().outcome, Outcome::Interrupted);
  EXPECT_FALSE(agent.has<EndAgent>());
  agent.hear(prepare(8, 1));
  EXPECT_TRUE(agent.the<msg::RunDoneT>().retry);
  agent.hear(msg::ReleasedT{});
  EXPECT_EQ(agent.sent<msg::LeaveT>().size(), 1u);
  EXPECT_EQ(agent.all<EndAgent>().at(0).why, EndAgent::Why::kLeft);
}

TEST(AgentCore, AnAgentThatWishesToLeaveStillFollowsItsRun) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.handle(AskedToLeave{60, "SIGTERM"});
  agent.hear(prepare(7, 2));  // another node was lost meanwhile
  agent.job(done(7, 1, Outcome::Failed));
  EXPECT_TRUE(agent.has<PrepareJob>());
}

TEST(AgentCore, TheWishIsRepeatedToASchedulerThatComesBack) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.handle(ConnectionLost{});
  agent.handle(AskedToLeave{60, "SIGTERM"});
  EXPECT_FALSE(agent.has<Send>());
  agent.pass(20);
  EXPECT_EQ(agent.the<msg::RegisterT>().run, 7u);
  agent.hear(registered());
  EXPECT_EQ(agent.the<msg::LeaveRequestT>().seconds, 40);
}

TEST(AgentCore, LosesPatience) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.handle(AskedToLeave{60, "SIGTERM"});
  agent.now += 59;
  agent.hear(msg::AliveT{});
  agent.pass(0.5);
  EXPECT_FALSE(agent.has<AbortJob>());
  agent.pass(1);
  EXPECT_TRUE(agent.has<AbortJob>());
  EXPECT_FALSE(agent.has<EndAgent>());
  agent.job(done(7, 1, Outcome::Failed));
  EXPECT_TRUE(agent.the<msg::RunDoneT>().retry);
  EXPECT_EQ(agent.all<EndAgent>().at(0).why, EndAgent::Why::kLeft);
}

TEST(AgentCore, ARequestWithoutTimeEndsItAtOnce) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.hear(prepare(7, 2));
  agent.handle(AskedToLeave{60, "SIGTERM"});
  agent.handle(AskedToLeave{30, "the owner wants the machine"});
  EXPECT_EQ(agent.the<msg::LeaveRequestT>().seconds, 30);
  EXPECT_TRUE(agent.sent<msg::RunDoneT>().empty());
  agent.handle(AskedToLeave{0, "SIGTERM"});
  EXPECT_EQ(agent.the<msg::RunDoneT>().epoch, 2u);
  EXPECT_FALSE(agent.has<EndAgent>());
  EXPECT_LE(agent.core.next_tick(), agent.now + 10);
  agent.pass(11);
  EXPECT_EQ(agent.all<EndAgent>().at(0).why, EndAgent::Why::kStuck);
}

TEST(AgentCore, AnAgentThatIsStuckComesBackUnlessItWasAlsoAskedToEnd) {
  for (const bool asked_to_end : {false, true}) {
    Driver agent;
    agent.join();
    agent.train(7, 1);
    agent.handle(AskedToLeave{60, "the owner wants the machine", true});
    if (asked_to_end) agent.handle(AskedToLeave{60, "SIGTERM"});
    agent.pass(61);
    EXPECT_FALSE(agent.has<EndAgent>());
    agent.pass(11);
    EXPECT_EQ(agent.all<EndAgent>().at(0).why, EndAgent::Why::kStuck);
    EXPECT_EQ(agent.all<EndAgent>().at(0).comes_back, !asked_to_end);
  }
}

TEST(AgentCore, AFreeAgentLeavesWhenReleasedOrAtOnceWithoutAScheduler) {
  Driver agent;
  agent.join();
  agent.handle(AskedToLeave{60, "SIGTERM"});
  EXPECT_EQ(agent.sent<msg::LeaveRequestT>().size(), 1u);
  EXPECT_FALSE(agent.has<EndAgent>());
  agent.pass(6);  // no scheduler is there to release it
  EXPECT_TRUE(agent.has<EndAgent>());

  Driver other;
  other.pass(0);
  other.handle(AskedToLeave{60, "SIGTERM"});
  EXPECT_TRUE(other.has<EndAgent>());
  EXPECT_FALSE(other.has<Send>());
}

TEST(AgentCore, WhoLeavesStaysWhileItsFilesAreOnTheirWay) {
  const auto ends_after = [](double seconds_of_sending) {
    Driver agent;
    agent.join();
    agent.handle(AskedToLeave{60, "SIGTERM"});
    agent.is_sending = true;
    agent.pass(0);
    agent.hear(msg::ReleasedT{});
    for (double seconds = 0; seconds < 100; ++seconds) {
      agent.hear(msg::AliveT{});
      agent.is_sending = seconds < seconds_of_sending;
      agent.pass(1);
      if (agent.has<EndAgent>()) return seconds;
    }
    return -1.0;
  };
  EXPECT_EQ(ends_after(0), 0);
  EXPECT_EQ(ends_after(10), 10);
  EXPECT_EQ(ends_after(1000), 59) << "its time is over";
}

TEST(AgentCore, ASchedulerThatKnowsNoWishesLetsTheRunEndWithACheckpoint) {
  Driver agent;
  agent.join();
  agent.train(7, 1);
  agent.handle(AskedToLeave{60, "SIGTERM"});
  agent.hear(msg::RefusedT{{}, "what is that"});
  EXPECT_TRUE(agent.has<StopJob>());
  agent.job(done(7, 1, Outcome::Interrupted));
  EXPECT_TRUE(agent.has<EndAgent>());
}

// ---- the outbox

TEST(Outbox, HasALimit) {
  Outbox outbox(3);
  outbox.add(prepared(1, 1), 0);
  for (const auto* text : {"a", "b", "c"}) outbox.add(event(1, text), 0);
  EXPECT_EQ(outbox.size(), 3u);
  EXPECT_EQ(outbox.left_out(), 1u);
  std::string kept;
  outbox.for_each([&](const msg::ToSchedulerMessage& message) {
    const auto* found = std::get_if<msg::RunEventT>(&message);
    kept += found == nullptr ? "p" : found->json;
  });
  EXPECT_EQ(kept, "pbc");
}

}  // namespace
}  // namespace modelet::agent::test
