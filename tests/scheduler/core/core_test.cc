// The scheduler's state machine, event by event.
#include "scheduler/core/core.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::Outcome;
using msg::RunState;
using testing::HasSubstr;

TEST_F(CoreTest, ARunGoesFromTheQueueToTheEnd) {
  add_agents(2);
  const uint64_t run = submit(0);
  ASSERT_NE(run, 0u);
  const auto first = pool.take<msg::PrepareT>("a"), second = pool.take<msg::PrepareT>("b");
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(first[0].rank, 0u);
  EXPECT_EQ(second[0].rank, 1u);
  EXPECT_EQ(first[0].size, 2u);
  EXPECT_EQ(first[0].owner, second[0].owner);
  EXPECT_EQ(first[0].owner.size(), 6u);
  EXPECT_EQ(first[0].group_key, second[0].group_key);
  EXPECT_EQ(first[0].node_names, agents);
  EXPECT_EQ(pool.run(run).state, RunState::Forming);

  pool.receive("a", prepared(run, "tcp://a:1"));
  EXPECT_TRUE(pool.take<msg::StartT>("a").empty()) << "b has not prepared yet";
  pool.receive("b", prepared(run, "tcp://b:1"));
  const auto start = pool.take<msg::StartT>("b");
  ASSERT_EQ(start.size(), 1u);
  EXPECT_EQ(start[0].endpoints, (std::vector<std::string>{"tcp://a:1", "tcp://b:1"}));
  EXPECT_EQ(pool.run(run).state, RunState::Running);

  pool.end("b", run, Outcome::Ok, 10);
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  pool.end("a", run, Outcome::Ok, 10);
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
  EXPECT_EQ(pool.run(run).step, 10u);
  EXPECT_EQ(pool.node("a").run, 0u);
}

TEST_F(CoreTest, ADeadAgentIsNamedWithTheStep) {
  const uint64_t run = running(3, 41);
  pool.pass(5, {"a", "c"}, run, 42);
  EXPECT_EQ(pool.run(run).state, RunState::Running) << "not silent for long enough";
  pool.pass(1, {"a", "c"}, run, 42);
  EXPECT_THAT(pool.log, HasSubstr("recovering: node 'b' stopped answering"));
  EXPECT_THAT(pool.log, HasSubstr("step 42"));
  EXPECT_EQ(pool.core.nodes().size(), 2u);
}

TEST_F(CoreTest, TheNodesOfAFailedRunAreFreeOnceTheySaySo) {
  const uint64_t run = running(3, 41);
  pool.receive("b", done(run, Outcome::Failed, 42));
  EXPECT_EQ(pool.run(run).state, RunState::Failed);
  EXPECT_EQ(pool.node("b").run, 0u);
  EXPECT_EQ(pool.node("a").run, run);
  pool.receive("a", done(run, Outcome::Interrupted, 42));
  EXPECT_EQ(pool.node("a").run, 0u);
  pool.pass(1, {"c"}, 0);
  EXPECT_EQ(pool.node("c").run, 0u);
}

TEST_F(CoreTest, AFailureOfOneNodeAbortsTheOthers) {
  const uint64_t run = running(2, 7);
  pool.inbox.clear();
  pool.receive("b", done(run, Outcome::Failed, 8, "disk full"));
  EXPECT_EQ(pool.run(run).state, RunState::Failed);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("node 'b' failed at step 8: disk full"));
  EXPECT_EQ(pool.take<msg::AbortT>("a").size(), 1u);
  EXPECT_TRUE(pool.take<msg::AbortT>("b").empty()) << "b has ended already";
  // The first cause is kept; consequences do not replace it.
  pool.receive("a", done(run, Outcome::Failed, 8, "peer missing"));
  EXPECT_THAT(pool.run(run).detail, HasSubstr("disk full"));
}

TEST_F(CoreTest, AFailureWhilePreparingFailsTheRun) {
  add_agents(2);
  const uint64_t run = submit(2);
  pool.receive("a", done(run, Outcome::Failed, 0, "train.txt: No such file or directory"));
  EXPECT_EQ(pool.run(run).state, RunState::Failed);
  EXPECT_FALSE(pool.run(run).user_error);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("No such file"));
  EXPECT_EQ(pool.take<msg::AbortT>("b").size(), 1u);
}

TEST_F(CoreTest, WhatTheUserCanCorrectIsTold) {
  add_agents(1);
  const uint64_t run = submit(1);
  msg::RunDoneT refused = done(run, Outcome::Failed, 0, "this checkpoint was made with another model.hidden");
  refused.user_error = true;
  pool.receive("a", refused);
  EXPECT_TRUE(pool.run(run).user_error);
}

TEST_F(CoreTest, ARunWaitsForNodesAndSaysWhy) {
  add_agents(1);
  const uint64_t run = submit(3);
  EXPECT_EQ(pool.run(run).state, RunState::Queued);
  EXPECT_EQ(pool.run(run).detail, "waits for 3 nodes, the pool has 1");
  // It does not delay runs that can work meanwhile.
  const uint64_t other = submit(1);
  EXPECT_EQ(pool.run(other).state, RunState::Forming);
  for (const char* name : {"x", "y"}) pool.receive(name, registration(name));
  EXPECT_EQ(pool.run(run).state, RunState::Queued);
  EXPECT_EQ(pool.run(run).detail, "waits for 3 nodes, 2 are of the pool's 3 free");
  // But a later run does not overtake it either.
  const uint64_t later = submit(1);
  EXPECT_EQ(pool.run(later).state, RunState::Queued);
  prepare(other, {"a"});
  pool.end("a", other, Outcome::Ok);
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  EXPECT_EQ(pool.run(later).state, RunState::Queued);
}

TEST_F(CoreTest, ReplicasGetNodesOfLikeSpeed) {
  const double speeds[] = {10, 40, 20, 30};  // of nodes a, b, c, d
  for (size_t i = 0; i < 4; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    msg::RegisterT info = registration(name);
    info.gflops = speeds[i];
    pool.receive(name, info);
  }
  const auto with_replicas = [](uint32_t nodes, uint32_t replicas) {
    msg::SubmitT submission_of = submission(nodes);
    Experiment experiment = parse_experiment(submission_of.experiment, "test");
    experiment.cluster.replicas = replicas;
    submission_of.experiment = to_toml(experiment);
    return submission_of;
  };
  pool.receive("user", with_replicas(3, 2));
  const auto refusals = pool.take<msg::RefusedT>("user");
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_THAT(refusals[0].reason, HasSubstr("cluster.replicas is 2"));
  pool.receive("user", with_replicas(0, 2));
  const auto prepare = pool.take<msg::PrepareT>("a");
  ASSERT_EQ(prepare.size(), 1u);
  // By speed the order is b, d, c, a. So the peers are b and d, and c and a.
  EXPECT_THAT(prepare[0].node_names, testing::ElementsAre("b", "c", "d", "a"));
  EXPECT_EQ(prepare[0].size, 4u);
  EXPECT_EQ(prepare[0].rank, 3u);
  for (const uint32_t rank : prepare[0].owner) EXPECT_LT(rank, 2u) << "of the first replica";
}

TEST_F(CoreTest, ARunGetsTheNodesThatAreFastInItsPrecision) {
  for (const auto& [name, gflops, bf16_gflops] : {std::tuple{"a", 50.0, 50.0}, {"b", 40.0, 160.0}}) {
    msg::RegisterT info = registration(name);
    info.gflops = gflops;
    info.bf16_gflops = bf16_gflops;
    pool.receive(name, info);
  }
  const auto nodes_of = [&](Precision precision) {
    msg::SubmitT submitted = submission(1);
    Experiment experiment = parse_experiment(submitted.experiment, "test");
    experiment.model.precision = precision;
    submitted.experiment = to_toml(experiment);
    pool.receive("user", submitted);
    return pool.run(pool.take<msg::AcceptedT>("user").back().run).node_names;
  };
  EXPECT_THAT(nodes_of(Precision::kBf16), testing::ElementsAre("b"));
  EXPECT_THAT(nodes_of(Precision::kFp32), testing::ElementsAre("a"));
}

TEST_F(CoreTest, SeveralRunsWorkOnDisjointNodes) {
  add_agents(4);
  const uint64_t first = submit(2), second = submit(2);
  EXPECT_EQ(pool.run(first).state, RunState::Forming);
  EXPECT_EQ(pool.run(second).state, RunState::Forming);
  std::map<uint64_t, int> nodes_of;
  for (const auto& node : pool.core.nodes()) ++nodes_of[node.run];
  EXPECT_EQ(nodes_of, (std::map<uint64_t, int>{{first, 2}, {second, 2}}));
}

TEST_F(CoreTest, TheLogComparesMemoryWithThePlan) {
  add_agents(1);
  msg::PreparedT ready = prepared(submit(1), "tcp://a:1");
  ready.memory_bytes = 3 << 20;
  pool.receive("a", ready);
  EXPECT_THAT(pool.log, HasSubstr("node 'a' is ready, its modelets take 3.0 MiB (planned: "));
}

TEST_F(CoreTest, ANodeWithoutModeletsStaysFree) {
  add_agents(8);  // the partition has 6 modelets
  const uint64_t run = submit(0);
  EXPECT_EQ(pool.run(run).node_names.size(), 6u);
  EXPECT_EQ(pool.take<msg::PrepareT>("a")[0].size, 6u);
}

TEST_F(CoreTest, ARunThatDoesNotFitFails) {
  msg::RegisterT small = registration("small");
  small.memory_bytes = uint64_t{1} << 20;
  pool.receive("small", small);
  const uint64_t run = submit(1);
  EXPECT_EQ(pool.run(run).state, RunState::Failed);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("does not fit"));
}

TEST_F(CoreTest, StopInEachState) {
  add_agents(1);
  const uint64_t first = submit(1), waiting = submit(1);
  pool.receive("client", msg::StopRunT{{}, waiting});
  EXPECT_EQ(pool.run(waiting).state, RunState::Stopped);

  pool.receive("client", msg::StopRunT{{}, first});
  EXPECT_EQ(pool.run(first).state, RunState::Stopped);
  EXPECT_EQ(pool.take<msg::AbortT>("a").size(), 1u);
  pool.receive("a", done(first, Outcome::Interrupted));

  const uint64_t run = submit(1);
  prepare(run, {"a"});
  pool.inbox.clear();
  pool.receive("client", msg::StopRunT{{}, run});
  EXPECT_EQ(pool.run(run).state, RunState::Stopping);
  EXPECT_EQ(pool.take<msg::StopT>("a").size(), 1u);
  pool.end("a", run, Outcome::Interrupted, 12);
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("step 12"));

  pool.inbox.clear();
  pool.receive("client", msg::StopRunT{{}, 99});
  EXPECT_EQ(pool.take<msg::RefusedT>("client").size(), 1u);
}

TEST_F(CoreTest, ATraceGoesToThoseWhoWatchAndIsNotKept) {
  add_agents(2);
  const uint64_t run = submit(2);
  pool.receive("client", msg::TraceRunT{{}, run, 50});
  EXPECT_THAT(pool.take<msg::RefusedT>("client").at(0).reason, HasSubstr("only a run that trains has steps"));
  prepare(run, {"a", "b"});
  pool.inbox.clear();
  pool.receive("client", msg::TraceRunT{{}, run, 50});
  const auto asked = pool.take<msg::TraceT>("a");
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].run, run);
  EXPECT_EQ(asked[0].steps, 50u);
  EXPECT_TRUE(pool.take<msg::TraceT>("b").empty()) << "rank 0 tells the others";

  pool.receive("watcher", msg::WatchT{{}, run});
  pool.inbox.clear();
  msg::RunEventT event;
  event.run = run;
  event.json = R"({"event":"trace"})";
  event.kind = msg::EventKind::Trace;
  event.number = 1;
  for (int again = 0; again < 2; ++again) pool.receive("b", event);
  EXPECT_EQ(pool.take<msg::RunEventT>("watcher").size(), 1u);
  pool.receive("late", msg::WatchT{{}, run});
  for (const auto& kept : pool.take<msg::RunEventT>("late")) EXPECT_THAT(kept.json, Not(HasSubstr("trace")));
}

TEST_F(CoreTest, AgentsOfAnEarlierReleaseAreNotAskedForTraces) {
  msg::RegisterT old = registration("a");
  old.protocol = 9;
  pool.receive("a", old);
  agents = {"a"};
  const uint64_t run = submit(1);
  prepare(run, {"a"});
  pool.receive("client", msg::TraceRunT{{}, run, 50});
  EXPECT_THAT(pool.take<msg::RefusedT>("client").at(0).reason, HasSubstr("'a' is of an earlier release"));
  EXPECT_TRUE(pool.take<msg::TraceT>("a").empty());
}

TEST_F(CoreTest, AStopThatIsIgnoredBecomesAnAbort) {
  const uint64_t run = running(2, 5);
  pool.receive("client", msg::StopRunT{{}, run});
  pool.inbox.clear();
  pool.pass(60, agents, run, 5);
  EXPECT_EQ(pool.run(run).state, RunState::Stopping);
  pool.pass(1, agents, run, 5);
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("did not stop"));
  EXPECT_EQ(pool.take<msg::AbortT>("a").size(), 1u);
}

TEST_F(CoreTest, ARenewedConnectionKeepsTheRun) {
  const uint64_t run = running(2, 9);
  pool.receive("b-new-connection", msg::HeartbeatT{{}, 0, run, 10});
  EXPECT_EQ(pool.take<msg::RegisterAgainT>("b-new-connection").size(), 1u);
  EXPECT_THAT(pool.log, HasSubstr("ignored a message of an agent that has to register again (number 1)"));
  pool.receive("b-new-connection", registration("b"));
  pool.pass(8, {"a", "b-new-connection"}, run, 11);
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  pool.end("a", run, Outcome::Ok, 20);
  pool.end("b-new-connection", run, Outcome::Ok, 20);
  EXPECT_EQ(pool.run(run).state, RunState::Finished);
}

TEST_F(CoreTest, ARegistrationSentTwiceIsOneNode) {
  add_agents(1);
  pool.receive("a", registration("a"));
  EXPECT_EQ(pool.core.nodes().size(), 1u);
  EXPECT_TRUE(pool.take<msg::RefusedT>("a").empty());
}

TEST_F(CoreTest, AnAgentThatKnowsNothingOfItsRunIsPreparedAgain) {
  add_agents(1);
  const uint64_t run = submit(1);
  pool.pass(4, {"a"}, 0);  // heartbeats that may have crossed Prepare
  EXPECT_EQ(pool.take<msg::PrepareT>("a").size(), 1u);
  pool.pass(3, {"a"}, 0);
  EXPECT_THAT(pool.log, HasSubstr("lost its part"));
  EXPECT_EQ(pool.run(run).recoveries, 1u);
  EXPECT_EQ(pool.take<msg::PrepareT>("a").at(0).epoch, 2u);
}

TEST_F(CoreTest, AnAgentThatWorksForAnUnknownRunIsToldToAbort) {
  add_agents(1);
  pool.receive("a", msg::HeartbeatT{{}, 0, 77, 3});
  const auto abort = pool.take<msg::AbortT>("a");
  ASSERT_EQ(abort.size(), 1u);
  EXPECT_EQ(abort[0].run, 77u);
}

TEST_F(CoreTest, AMessageOfAnotherEpochIsIgnored) {
  const uint64_t run = running(1, 3);
  msg::RunDoneT old = done(run, Outcome::Failed, 3, "old");
  old.epoch = 0;
  pool.receive("a", old);
  EXPECT_EQ(pool.run(run).state, RunState::Running);
}

TEST_F(CoreTest, ASchedulerThatSleptTakesNobodyForDead) {
  const uint64_t run = running(2, 3);
  pool.now += 1000;
  pool.handle(Tick{});
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  EXPECT_EQ(pool.core.nodes().size(), 2u);
  pool.pass(6);
  EXPECT_EQ(pool.core.nodes().size(), 0u) << "but now they are";
}

TEST_F(CoreTest, WatchersGetEventsStatusAndTheEnd) {
  const uint64_t run = running(1, 1);
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})"});
  pool.receive("late", msg::WatchT{{}, run});
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"progress"})"});
  auto inbox = pool.inbox["late"];
  const auto events = pool.take<msg::RunEventT>("late");
  ASSERT_EQ(events.size(), 2u) << "what came before is told too";
  EXPECT_EQ(events[0].json, R"({"event":"started"})");
  pool.pass(2, {"a"}, run, 2);
  EXPECT_EQ(pool.take<msg::RunStatusT>("late").size(), 2u) << "a sign of life with each tick";
  pool.end("a", run, Outcome::Ok, 3);
  const auto end = pool.take<msg::RunStatusT>("late");
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].state, RunState::Finished);
  pool.pass(1, {"a"});
  EXPECT_TRUE(pool.take<msg::RunStatusT>("late").empty());
}

TEST_F(CoreTest, AGoneWatcherIsForgotten) {
  const uint64_t run = running(1, 1);
  pool.receive("late", msg::WatchT{{}, run});
  pool.handle(PeerGone{"late"});
  pool.inbox.clear();
  pool.pass(1, {"a"}, run, 2);
  EXPECT_TRUE(pool.inbox["late"].empty());
}

TEST_F(CoreTest, NonsenseIsRefusedWithAReason) {
  const auto refusal = [&](msg::ToSchedulerMessage message) {
    pool.receive("client", std::move(message));
    const auto refused = pool.take<msg::RefusedT>("client");
    return refused.empty() ? std::string("accepted") : refused.front().reason;
  };
  EXPECT_THAT(refusal(submission(1, "../../etc")), HasSubstr("name"));
  msg::SubmitT bad_toml = submission(1);
  bad_toml.experiment = "[train]\nepochz = 3\n";
  EXPECT_THAT(refusal(std::move(bad_toml)), HasSubstr("epochs"));
  msg::SubmitT no_shape = submission(1);
  no_shape.shape.reset();
  EXPECT_THAT(refusal(std::move(no_shape)), HasSubstr("shape"));
  msg::SubmitT absurd = submission(1);
  absurd.shape->labels = ~uint64_t{0};
  EXPECT_THAT(refusal(std::move(absurd)), HasSubstr("shape"));
  EXPECT_THAT(refusal(registration("")), HasSubstr("name"));
  msg::RegisterT slow = registration("slow");
  slow.gflops = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(refusal(slow), HasSubstr("speed"));
  EXPECT_THAT(refusal(msg::WatchT{{}, 5}), HasSubstr("no run 5"));
}

TEST_F(CoreTest, EndedRunsMakeRoomForNewOnes) {
  CoreOptions options;
  options.max_runs = 2;
  pool.core = Core(options);
  add_agents(1);
  const uint64_t first = submit(1);
  submit(1);
  EXPECT_EQ(submit(1), 0u) << "both wait or run";
  pool.receive("a", done(first, Outcome::Failed));
  EXPECT_NE(submit(1), 0u);
  EXPECT_EQ(pool.run(first).run, 0u) << "forgotten";
}

TEST_F(CoreTest, TheLogOfARunIsReadPageByPage) {
  const uint64_t run = running(1, 1);
  const auto log = [&](uint64_t offset) {
    pool.receive("client", msg::FindRunLogT{{}, run, "", offset});
    return pool.take<msg::RunLogT>("client").at(0);
  };
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})"});
  const auto first = log(0);
  EXPECT_EQ(first.text, "{\"event\":\"started\"}\n");
  EXPECT_FALSE(first.complete);
  EXPECT_EQ(log(first.next).text, "");
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"finished"})"});
  pool.end("a", run, Outcome::Ok, 3);
  const auto rest = log(first.next);
  EXPECT_EQ(rest.text, "{\"event\":\"finished\"}\n");
  EXPECT_TRUE(rest.complete);
  pool.receive("client", msg::FindRunLogT{{}, run, "a", 0});
  EXPECT_THAT(pool.take<msg::RefusedT>("client").at(0).reason, HasSubstr("keeps no logs of nodes"));
}

TEST_F(CoreTest, AgentsAndUsersMayDoWhatIsTheirs) {
  using comm::Role;
  const std::vector<msg::ToSchedulerMessage> of_agents = {
      registration("a"),    msg::HeartbeatT{},  prepared(1, "tcp://a:1"), msg::RunEventT{},
      done(1, Outcome::Ok), msg::LeaveT{},      msg::FetchManifestT{},    msg::FetchChunkT{},
      msg::LeaveRequestT{}, msg::PeerMissedT{}, msg::SnapshotHeldT{}};
  const std::vector<msg::ToSchedulerMessage> of_users = {
      submission(1),        msg::ListRunsT{},     msg::ListNodesT{},  msg::WatchT{{}, 1},
      msg::StopRunT{{}, 1}, msg::FindDataPortT{}, msg::OfferT{},      msg::PutChunkT{},
      msg::DrainNodeT{},    msg::FindRunFilesT{}, msg::FindRunLogT{}, msg::ApproveNodeT{},
      msg::TraceRunT{{}, 1, 50}};
  // Whoever has a key may send Enrol, which lets in only with an invitation (entry_test.cc).
  ASSERT_EQ(of_agents.size() + of_users.size() + 1, std::variant_size_v<msg::ToSchedulerMessage>);
  const auto answer = [&](Role role, const msg::ToSchedulerMessage& message) {
    pool.handle(Received{"peer", message, {role, "office"}});
    const auto refused = pool.take<msg::RefusedT>("peer");
    return refused.empty() ? std::string("taken") : refused.front().reason;
  };
  for (const auto& message : of_agents) {
    EXPECT_THAT(answer(Role::kUser, message), HasSubstr("the key 'office' is a user's"));
    if (std::holds_alternative<msg::RegisterT>(message)) continue;  // it waits (entry_test.cc)
    EXPECT_THAT(answer(Role::kNobody, message), HasSubstr("no longer, in the scheduler's allow-list"));
  }
  for (const auto& message : of_users) {
    EXPECT_THAT(answer(Role::kAgent, message), HasSubstr("the key 'office' is an agent's"));
    EXPECT_THAT(answer(Role::kNobody, message), HasSubstr("no longer, in the scheduler's allow-list"));
  }
  EXPECT_EQ(pool.core.counts().refused_keys, of_agents.size() - 1 + of_users.size());
  EXPECT_TRUE(pool.core.nodes().empty());
  EXPECT_TRUE(pool.core.runs().empty());
  EXPECT_THAT(pool.log, HasSubstr("refused a message: the key 'office' is a user's"));
  EXPECT_EQ(answer(Role::kUser, submission(1)), "taken");
  EXPECT_EQ(answer(Role::kAgent, registration("a")), "taken");
  EXPECT_THAT(pool.log, HasSubstr("node 'a' joined with key 'office'"));
}

TEST_F(CoreTest, KeysOfDataSocketsTravelWithTheEndpoints) {
  const std::string keys[] = {std::string(64, 'a'), std::string(64, 'b')};
  for (const char* agent : {"a", "b"})
    pool.handle(Received{agent, registration(agent), {comm::Role::kAgent, "farm"}});
  const uint64_t run = submit(0);
  for (const std::string& key : keys) {
    const std::string agent = key.substr(0, 1);
    auto message = prepared(run, "tcp://" + agent + ":1");
    message.public_key = key;
    pool.receive(agent, message);
  }
  const auto start = pool.take<msg::StartT>("a");
  ASSERT_EQ(start.size(), 1u);
  EXPECT_EQ(start[0].public_keys, (std::vector<std::string>{keys[0], keys[1]}));
}

// ---- data for agents that do not have it

msg::SubmitT submission_with_data(char train = 'a', char test = 'b') {
  msg::SubmitT submit = submission(1);
  submit.train_data = std::string(64, train);
  submit.test_data = std::string(64, test);
  return submit;
}

TEST(CoreDataTest, AgentsAreToldWhereTheDataOfARunIs) {
  Harness pool(CoreOptions{.data_port = 777});
  pool.receive("client", msg::FindDataPortT{});
  EXPECT_EQ(pool.take<msg::DataPortT>("client").at(0).port, 777);
  pool.receive("a", registration("a"));
  pool.receive("client", submission_with_data());
  const auto prepare = pool.take<msg::PrepareT>("a").at(0);
  EXPECT_EQ(prepare.train_data, std::string(64, 'a'));
  EXPECT_EQ(prepare.test_data, std::string(64, 'b'));
  EXPECT_EQ(prepare.data_port, 777);
}

TEST(CoreDataTest, DataIsInUseFromTheSubmissionToTheEndOfTheRun) {
  using testing::Pair;
  Harness pool(CoreOptions{.data_port = 777});
  pool.receive("a", registration("a"));
  EXPECT_THAT(pool.core.data_in_use(), testing::IsEmpty());
  pool.handle(Received{"client", submission_with_data('a', 'b'), {comm::Role::kUser, "one"}});
  pool.handle(Received{"client", submission_with_data('c', 'b'), {comm::Role::kUser, "two"}});
  const std::string a(64, 'a'), b(64, 'b'), c(64, 'c');
  EXPECT_THAT(pool.core.data_in_use(), testing::ElementsAre(Pair(a, "one"), Pair(b, "one"), Pair(c, "two")));
  pool.receive("client", msg::StopRunT{{}, 2});
  EXPECT_THAT(pool.core.data_in_use(), testing::ElementsAre(Pair(a, "one"), Pair(b, "one")));
  pool.receive("a", done(1, Outcome::Failed));
  EXPECT_THAT(pool.core.data_in_use(), testing::IsEmpty());
}

TEST(CoreDataTest, AnAgentHasOnlyTheFilesOfItsPresentRun) {
  using testing::Pair;
  Harness pool(CoreOptions{.data_port = 777});
  pool.handle(Received{"a", registration("a"), {comm::Role::kAgent, "farm"}});
  EXPECT_THAT(pool.core.files_of_agents(), testing::IsEmpty());
  pool.handle(Received{"client", submission_with_data('a', 'b'), {comm::Role::kUser, "one"}});
  pool.handle(Received{"client", submission_with_data('c', 'b'), {comm::Role::kUser, "two"}});
  EXPECT_THAT(pool.core.files_of_agents(), testing::UnorderedElementsAre(Pair(std::string(64, 'a'), "farm"),
                                                                         Pair(std::string(64, 'b'), "farm")));
  pool.handle(Received{"a", done(1, Outcome::Failed), {comm::Role::kAgent, "farm"}});
  EXPECT_THAT(pool.core.files_of_agents(), testing::UnorderedElementsAre(Pair(std::string(64, 'b'), "farm"),
                                                                         Pair(std::string(64, 'c'), "farm")));
}

TEST(CoreDataTest, WrongAddressesOfDataAreRefused) {
  Harness with_store(CoreOptions{.data_port = 777}), without;
  const auto refusal = [](Harness& pool, msg::SubmitT submit) {
    pool.receive("client", std::move(submit));
    const auto refusals = pool.take<msg::RefusedT>("client");
    return refusals.empty() ? "accepted" : refusals.at(0).reason;
  };
  EXPECT_EQ(refusal(with_store, submission_with_data()), "accepted");
  EXPECT_EQ(refusal(without, submission(1)), "accepted");
  EXPECT_THAT(refusal(without, submission_with_data()), testing::HasSubstr("--store"));
  EXPECT_THAT(refusal(with_store, submission_with_data('/')), testing::HasSubstr("address"));
  msg::SubmitT half = submission_with_data();
  half.test_data.clear();
  EXPECT_THAT(refusal(with_store, half), testing::HasSubstr("address"));
}

TEST(CoreDataTest, WhoFetchesDataIsSeenInTheListOfRuns) {
  Harness pool;
  pool.receive("a", registration("a"));
  pool.receive("client", submission(1));
  const auto tell = [&](msg::EventKind kind, double done) {
    pool.receive("a", event(1, kind, done));
    return pool.run(1).detail;
  };
  EXPECT_EQ(tell(msg::EventKind::Fetching, 0.25), "node 'a' fetches data: 25 %");
  EXPECT_EQ(tell(msg::EventKind::Fetching, 500), "node 'a' fetches data: 100 %");
  EXPECT_EQ(tell(msg::EventKind::Preparing, 0.5), "node 'a' prepares data: 50 %");
  for (const double nonsense : {-1.0, std::nan(""), HUGE_VAL})
    EXPECT_EQ(tell(msg::EventKind::Fetching, nonsense), "node 'a' prepares data: 50 %");
  EXPECT_EQ(tell(msg::EventKind::Other, 1), "node 'a' prepares data: 50 %");
}

}  // namespace
}  // namespace modelet::scheduler::test
