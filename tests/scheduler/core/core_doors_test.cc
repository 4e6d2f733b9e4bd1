// What malicious or careless agents and users may try. The pool must survive all of it.
#include <gmock/gmock.h>

#include <set>
#include <span>

#include "scheduler/core/values/text.h"
#include "tests/growth.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using comm::Role;
using msg::Outcome;
using msg::RunState;
using testing::HasSubstr;

// Agents and users with keys.
class DoorsTest : public CoreTest {
 protected:
  void say(const std::string& peer, Role role, const std::string& key, msg::ToSchedulerMessage message,
           const std::string& address = "") {
    pool.handle(Received{peer, std::move(message), {role, key}, address});
  }
  // Returns why `key` is refused, or "" if it is not.
  std::string refusal(Role role, const std::string& key, msg::ToSchedulerMessage message,
                      const std::string& address = "") {
    const std::string peer = "peer of " + key;
    pool.inbox.erase(peer);
    say(peer, role, key, std::move(message), address);
    const auto refused = pool.take<msg::RefusedT>(peer);
    return refused.empty() ? "" : refused.front().reason;
  }
  bool registers(const std::string& peer, const std::string& key, const msg::RegisterT& info) {
    say(peer, Role::kAgent, key, info);
    return pool.take<msg::RegisteredT>(peer).size() == 1;
  }
};

// ---- one submission must not make the scheduler deaf

TEST_F(DoorsTest, ASubmissionOfTooManyModeletsIsRefused) {
  add_agents(1);
  msg::SubmitT huge = submission(1);
  huge.shape->labels = 100'000;
  Experiment experiment = parse_experiment(huge.experiment, "test");
  experiment.modelets.output_modelets = 60'000;
  huge.experiment = to_toml(experiment);
  EXPECT_THAT(
      refusal(Role::kAnybody, "", std::move(huge)),
      testing::AllOf(HasSubstr("60002 modelets, more than the limit of"), HasSubstr("output_modelets")));
  EXPECT_TRUE(pool.core.runs().empty());
}

TEST_F(DoorsTest, ALongExperimentIsRefused) {
  msg::SubmitT longest = submission(1);
  longest.experiment += std::string(1 << 20, '#');
  EXPECT_THAT(refusal(Role::kAnybody, "", std::move(longest)), HasSubstr("more than the limit"));
}

TEST_F(DoorsTest, NobodyWaitsForAPlanButItsRun) {
  add_agents(3);
  const uint64_t first = submit(1);
  const std::string busy = pool.run(first).node_names.front();
  prepare(first, {busy});
  ASSERT_EQ(pool.run(first).state, RunState::Running);
  pool.plans_later = true;
  const uint64_t waits = submit(2);
  ASSERT_EQ(pool.requests.size(), 1u);
  EXPECT_EQ(pool.requests[0].run, waits);
  EXPECT_EQ(pool.requests[0].nodes.size(), 2u);
  EXPECT_EQ(pool.run(waits).state, RunState::Queued);
  EXPECT_THAT(pool.run(waits).detail, HasSubstr("is placed on 2 nodes"));
  // The running run goes on, and no other run gets the nodes that the plan is made for.
  const uint64_t later = submit(1);
  for (int i = 0; i < 20; ++i) {
    for (const std::string& agent : agents)
      if (agent != busy) pool.receive(agent, msg::HeartbeatT{});
    pool.pass(1, {busy}, first, 7);
  }
  EXPECT_EQ(pool.run(first).state, RunState::Running);
  EXPECT_EQ(pool.run(later).state, RunState::Queued);
  EXPECT_EQ(pool.requests.size(), 1u);
  pool.handle(carry_out(pool.requests[0]));
  EXPECT_EQ(pool.run(waits).state, RunState::Forming);
  pool.handle(carry_out(pool.requests[0]));
  EXPECT_EQ(pool.run(waits).state, RunState::Forming) << "an answer that comes twice changes nothing";
}

TEST_F(DoorsTest, APlanThatNobodyWantsAnyMoreIsForgotten) {
  add_agents(2);
  pool.plans_later = true;
  const uint64_t stopped = submit(2);
  pool.receive("client", msg::StopRunT{{}, stopped});
  EXPECT_EQ(pool.run(stopped).state, RunState::Stopped);
  EXPECT_THAT(pool.forgotten, testing::ElementsAre(pool.requests.at(0).number));
  const uint64_t next = submit(2);
  ASSERT_EQ(pool.requests.size(), 2u) << "its nodes are free again";
  pool.handle(carry_out(pool.requests[0]));
  EXPECT_EQ(pool.run(stopped).state, RunState::Stopped);
  EXPECT_EQ(pool.run(next).state, RunState::Queued);

  pool.receive("b", msg::LeaveT{});  // a node that the plan is made for
  EXPECT_THAT(pool.run(next).detail, HasSubstr("the pool has 1"));
  pool.handle(carry_out(pool.requests[1]));
  EXPECT_EQ(pool.run(next).state, RunState::Queued);
  pool.receive("c", registration("c"));
  ASSERT_EQ(pool.requests.size(), 3u);
  pool.handle(carry_out(pool.requests[2]));
  EXPECT_EQ(pool.run(next).state, RunState::Forming);
  EXPECT_EQ(pool.run(next).node_names, (std::vector<std::string>{"a", "c"}));
  EXPECT_THAT(pool.forgotten, testing::ElementsAre(pool.requests[0].number, pool.requests[1].number))
      << "and what was answered needs no forgetting";
}

// A group that has stopped to be placed anew keeps its nodes while the plan is made.
class PlacedAnewTest : public DoorsTest {
 protected:
  void SetUp() override {
    run = running(2, 10);
    for (int i = 0; i < 12; ++i) {
      pool.pass(1, agents, run, 10);
      pool.receive("a", progress(run, {1, 3}));
    }
    pool.plans_later = true;
    pool.receive("a", event(run, msg::EventKind::Interrupted));
    for (const std::string& agent : agents) pool.end(agent, run, Outcome::Interrupted, 12);
    ASSERT_EQ(pool.requests.size(), 1u);
  }
  uint64_t run = 0;
};

TEST_F(PlacedAnewTest, KeepsItsNodes) {
  const uint64_t other = submit(1);
  pool.pass(10, agents);
  EXPECT_EQ(pool.run(other).state, RunState::Queued);
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  pool.handle(carry_out(pool.requests[0]));
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
}

TEST_F(PlacedAnewTest, CanBeStopped) {
  pool.receive("client", msg::StopRunT{{}, run});
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
  EXPECT_THAT(pool.run(run).detail, HasSubstr("checkpoint written"));
  for (const std::string& agent : agents) EXPECT_EQ(pool.node(agent).run, 0u);
  pool.handle(carry_out(pool.requests[0]));
  EXPECT_EQ(pool.run(run).state, RunState::Stopped);
}

TEST_F(PlacedAnewTest, DoesWithoutItsNode) {
  pool.receive("b", held(run, 1, 12, 1, {"b", "a"}, true));  // which is not the only one to have its files
  pool.receive("b", msg::LeaveT{});
  pool.handle(carry_out(pool.requests[0]));
  EXPECT_EQ(pool.run(run).state, RunState::Recovering) << "that plan is not wanted any more";
  ASSERT_EQ(pool.requests.size(), 2u);
  pool.handle(carry_out(pool.requests[1]));
  EXPECT_EQ(pool.run(run).state, RunState::Forming);
  EXPECT_THAT(pool.run(run).node_names, testing::ElementsAre("a"));
}

// ---- texts of agents and users

TEST_F(DoorsTest, NoTextForgesALineOrSteersATerminal) {
  const std::string evil = "\x1b[2J\nnode 'a' joined";
  msg::RegisterT info = registration("a");
  info.version = evil;
  pool.receive("a", info);
  const uint64_t run = submit(1);
  pool.receive("client", msg::WatchT{{}, run});
  pool.inbox["client"].clear();
  pool.receive(
      "a", msg::RunEventT{{}, run, nlohmann::json{{"event", "x"}, {"node", evil}, {"list", {evil}}}.dump()});
  const auto events = pool.take<msg::RunEventT>("client");
  ASSERT_EQ(events.size(), 1u);
  const auto event = nlohmann::json::parse(events[0].json);
  pool.receive("a", done(run, Outcome::Failed, 1, evil));
  EXPECT_EQ(std::count(pool.log.begin(), pool.log.end(), '\n'), 4) << pool.log;
  for (const std::string& text : {pool.log, pool.run(run).detail, pool.node("a").version,
                                  event["node"].get<std::string>(), event["list"][0].get<std::string>()}) {
    EXPECT_THAT(text, testing::Not(HasSubstr("\x1b")));
    EXPECT_THAT(text, testing::Not(HasSubstr("\nnode 'a' joined\n")));
  }
  EXPECT_THAT(pool.run(run).detail, HasSubstr("\\x1b[2J\\nnode 'a' joined"));
  EXPECT_EQ(kept_lines("\x1b[2J\nb"), "\\x1b[2J\nb\n");
}

TEST_F(DoorsTest, MalformedEventsReachNobody) {
  add_agents(1);
  const uint64_t run = submit(1);
  pool.receive("client", msg::WatchT{{}, run});
  pool.inbox["client"].clear();
  for (const std::string& nonsense :
       {std::string("[{"), std::string("[]"), std::string("7"), std::string("\"text\""),
        std::string(60'000, '['), "{\"event\":\"" + std::string(100'000, 'x') + "\"}",
        std::string(R"({"event":"half a character )") + '\xc3' + "\"}"})
    pool.receive("a", msg::RunEventT{{}, run, nonsense});
  std::string deep = "1";
  for (int i = 0; i < 10'000; ++i) deep = "[" + deep + "]";
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"x","deep":)" + deep + "}"});
  EXPECT_TRUE(pool.take<msg::RunEventT>("client").empty());
}

TEST_F(DoorsTest, TheWorkOfAnEventIsLinear) {
  EXPECT_TRUE(modelet::test::grows_linearly(
      1000,
      [](size_t n) {
        std::string event = R"({"event":"x","list":[)";
        for (size_t i = 0; i < n; ++i) event += "{},";
        return event + "{}]}";
      },
      [](const std::string& event) { ASSERT_TRUE(kept_event(event)); }));
}

TEST_F(DoorsTest, AnEventThatThrowsEndsNothing) {
  add_agents(1);
  struct Thrower {
    operator msg::RegisterT() const { throw std::runtime_error("while it is made"); }
  };
  const auto throw_at_message_of = [&](const std::string& peer) {
    Received event{peer, msg::ListRunsT{}, {}, ""};
    EXPECT_THROW(event.message.emplace<msg::RegisterT>(Thrower{}), std::runtime_error);
    ASSERT_TRUE(event.message.valueless_by_exception()) << "std::visit throws at it";
    pool.log.clear();
    pool.handle(event);
    EXPECT_THAT(pool.log, HasSubstr("an event could not be handled"));
  };
  throw_at_message_of("mallory");
  EXPECT_EQ(pool.take<msg::RefusedT>("mallory").size(), 1u);
  throw_at_message_of("a");
  EXPECT_TRUE(pool.take<msg::RefusedT>("a").empty()) << "an agent that is refused ends";
  EXPECT_NE(submit(1), 0u) << "and it goes on";
}

// ---- names and claims

TEST_F(DoorsTest, AnOutcomeThatThereIsNotEndsNoRun) {
  const uint64_t run = running(1, 10);
  pool.receive("a", done(run, static_cast<Outcome>(200), 10));
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  pool.restart();
  EXPECT_EQ(pool.run(run).run, run) << "its record can be read";
}

TEST_F(DoorsTest, ANameStaysWithTheKeyThatRegisteredIt) {
  EXPECT_TRUE(registers("p", "one", registration("a", 1)));
  EXPECT_FALSE(registers("q", "two", registration("a", 2)));
  EXPECT_FALSE(registers("q", "two", registration("a", 1))) << "not by a copied incarnation either";
  EXPECT_TRUE(pool.take<msg::RefusedT>("p").empty());
  say("p", Role::kAgent, "one", msg::LeaveT{});
  EXPECT_FALSE(registers("q", "two", registration("a", 2))) << "nor once it is gone";
  EXPECT_TRUE(registers("p", "one", registration("a", 3)));
}

TEST_F(DoorsTest, ALivingAgentIsNotReplaced) {
  const uint64_t run = running(2, 9);
  pool.inbox.clear();
  pool.receive("twin", registration("b", 2));
  EXPECT_TRUE(pool.inbox["twin"].empty()) << "the first one is asked for a sign of life";
  EXPECT_EQ(pool.take<msg::AliveT>("b").size(), 1u);
  pool.pass(1, agents, run, 10);
  pool.receive("twin", registration("b", 2));
  const auto refused = pool.take<msg::RefusedT>("twin");
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(refused[0].reason, HasSubstr("an agent named 'b' is at work already"));
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  EXPECT_TRUE(pool.take<msg::RefusedT>("b").empty());
  pool.handle(PeerGone{"b"});  // much later: this connection may come back
  EXPECT_EQ(pool.run(run).state, RunState::Running);
}

// The agent was killed and restarted by its service manager. Its connection ended with it.
TEST_F(DoorsTest, ARestartedAgentGetsInAtOnce) {
  const uint64_t run = running(2, 9);
  pool.now += 0.1;
  pool.receive("b again", registration("b", 2));
  pool.handle(PeerGone{"b"});
  EXPECT_THAT(pool.run(run).node_names, testing::ElementsAre("a"));
  EXPECT_THAT(pool.log, HasSubstr("recovering: node 'b' was replaced"));
  pool.receive("b again", registration("b", 2));
  EXPECT_EQ(pool.take<msg::RegisteredT>("b again").size(), 1u);
  EXPECT_EQ(pool.core.nodes().size(), 2u);
  EXPECT_EQ(pool.node("b").run, 0u);
}

// A newcomer gave up long ago. The agent has sent heartbeats since, and is restarted now.
TEST_F(DoorsTest, AnOldChallengeRefusesNobody) {
  const uint64_t run = running(2, 9);
  pool.receive("twin", registration("b", 2));
  pool.pass(100, agents, run, 10);
  pool.now += 0.1;
  pool.receive("b again", registration("b", 3));
  pool.handle(PeerGone{"b"});
  pool.receive("b again", registration("b", 3));
  EXPECT_TRUE(std::ranges::none_of(pool.inbox["b again"], [](const auto& message) {
    return std::holds_alternative<msg::RefusedT>(message);
  }));
  EXPECT_EQ(pool.take<msg::RegisteredT>("b again").size(), 1u);
}

// Nothing shows that the machine is gone, except that it is silent.
TEST_F(DoorsTest, AnAgentWhoseMachineWasSwitchedOffGetsInOnceThatIsDead) {
  running(2, 9);
  for (int i = 0; i < 6; ++i) {
    pool.pass(1, {"a"}, 1, 9);
    pool.receive("b again", registration("b", 2));
  }
  EXPECT_EQ(pool.take<msg::RegisteredT>("b again").size(), 1u);
  EXPECT_TRUE(pool.take<msg::RefusedT>("b again").empty());
}

TEST_F(DoorsTest, AKeyHasItsNumberOfNames) {
  pool.core = Core(CoreOptions{.max_names = 3});
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(registers(name, "one", registration(name)));
  EXPECT_THAT(refusal(Role::kAgent, "one", registration("d")), HasSubstr("3 agents with the key 'one'"));
  EXPECT_TRUE(registers("e", "two", registration("e")));
  // A name that no agent has makes room for the new one, and is free then.
  say("b", Role::kAgent, "one", msg::LeaveT{});
  EXPECT_TRUE(registers("d", "one", registration("d")));
  EXPECT_TRUE(registers("x", "two", registration("b")));
  EXPECT_EQ(pool.core.nodes().size(), 5u);
}

TEST_F(DoorsTest, WhoIsRefusedLosesNoName) {
  pool.core = Core(CoreOptions{.max_nodes = 1, .max_names = 1});
  EXPECT_TRUE(registers("p", "one", registration("b")));
  say("p", Role::kAgent, "one", msg::LeaveT{});
  EXPECT_TRUE(registers("q", "two", registration("x")));
  EXPECT_THAT(refusal(Role::kAgent, "one", registration("d")), HasSubstr("the pool is full"));
  EXPECT_THAT(refusal(Role::kAgent, "three", registration("b")), HasSubstr("another key has the name 'b'"));
}

TEST_F(DoorsTest, NobodyIsFasterThanAMachineCanBe) {
  msg::RegisterT boast = registration("a");
  boast.cores = 2;
  boast.gflops = 1e300;
  boast.bf16_gflops = 1e300;
  boast.memory_gbps = 1e300;
  boast.memory_bytes = ~uint64_t{0};
  pool.receive("a", boast);
  EXPECT_LE(pool.node("a").gflops, 2000);
  EXPECT_LE(pool.node("a").bf16_gflops, 20000);
  EXPECT_LE(pool.node("a").memory_gbps, 200);
  EXPECT_LE(pool.node("a").memory_bytes, uint64_t{64} << 40);
  boast.name = "b";
  boast.cores = 4'000'000'000;
  pool.receive("b", boast);
  EXPECT_LE(pool.node("b").cores, 1024u);
}

// ---- whose runs

TEST_F(DoorsTest, ARunBelongsToTheKeyThatSubmittedIt) {
  add_agents(1);
  say("alice", Role::kUser, "alice", submission(1));
  const uint64_t run = pool.take<msg::AcceptedT>("alice").at(0).run;
  prepare(run, {"a"});
  EXPECT_EQ(pool.run(run).submitter, "alice");
  EXPECT_THAT(refusal(Role::kUser, "bob", msg::StopRunT{{}, run}), HasSubstr("belongs to the key 'alice'"));
  EXPECT_THAT(refusal(Role::kUser, "bob", msg::WatchT{{}, run}), HasSubstr("may watch it"));
  EXPECT_EQ(pool.run(run).state, RunState::Running);
  pool.receive("a", msg::RunEventT{{}, run, R"({"event":"started"})"});
  EXPECT_TRUE(pool.take<msg::RunEventT>("peer of bob").empty());
  EXPECT_EQ(refusal(Role::kUser, "alice", msg::WatchT{{}, run}), "");
  EXPECT_EQ(refusal(Role::kAdmin, "root", msg::WatchT{{}, run}), "");
  EXPECT_EQ(refusal(Role::kAdmin, "root", msg::StopRunT{{}, run}), "");
  EXPECT_EQ(pool.run(run).state, RunState::Stopping);
  EXPECT_THAT(refusal(Role::kAdmin, "root", registration("x")), HasSubstr("may not be an agent"));
}

TEST_F(DoorsTest, OthersSeeThatARunIsThereAndNotWhatItSays) {
  add_agents(1);
  say("alice", Role::kUser, "alice", submission(1));
  pool.receive("a", done(1, Outcome::Failed, 0, "/home/alice/secret: no such file"));
  const auto detail = [&](Role role, const std::string& key) {
    say("lists", role, key, msg::ListRunsT{});
    return pool.take<msg::RunListT>("lists").at(0).runs.at(0)->detail;
  };
  EXPECT_THAT(detail(Role::kUser, "alice"), HasSubstr("secret"));
  EXPECT_THAT(detail(Role::kAdmin, "root"), HasSubstr("secret"));
  EXPECT_EQ(detail(Role::kUser, "bob"), "");
}

TEST_F(DoorsTest, TheListOfRunsFitsIntoAMessage) {
  constexpr size_t kRuns = 1000, kOfEncryption = 64;
  add_agents(1);
  for (size_t i = 0; i < kRuns; ++i)
    pool.receive("a", done(submit(1), Outcome::Failed, 0, std::string(5000, 'w')));
  pool.receive("client", msg::ListRunsT{});
  auto lists = pool.take<msg::RunListT>("client");
  ASSERT_EQ(lists.size(), 1u);
  ASSERT_EQ(lists[0].runs.size(), kRuns);
  const msg::RunStatusT newest = *lists[0].runs.back(), oldest = *lists[0].runs.front();
  EXPECT_EQ(newest.detail, pool.run(newest.run).detail);
  EXPECT_THAT(oldest.detail, HasSubstr("failed at step 0: www"));
  EXPECT_LE(msg::encode(std::move(lists[0])).size(), msg::kMaxControlBytes - kOfEncryption);
}

TEST_F(DoorsTest, OnlyAdministratorsPutARunBeforeThoseOfOthers) {
  const auto answer = [&](Role role, int32_t priority) {
    msg::SubmitT submit = submission(1);
    submit.wait = true;
    submit.priority = priority;
    return refusal(role, "key", submit);
  };
  EXPECT_THAT(answer(Role::kUser, 1), HasSubstr("--priority 1: only an administrator's key"));
  EXPECT_TRUE(pool.core.runs().empty());
  for (const int32_t priority : {0, -1}) EXPECT_EQ(answer(Role::kUser, priority), "");
  EXPECT_EQ(answer(Role::kAdmin, 7), "");
  EXPECT_EQ(answer(Role::kAnybody, 7), "") << "a pool without keys";
}

// ---- what cannot work is refused at once

TEST_F(DoorsTest, MoreNodesThanThePoolHasAreWaitedForOnlyOnRequest) {
  add_agents(2);
  msg::SubmitT many = submission(1000);
  many.wait = false;
  EXPECT_THAT(refusal(Role::kAnybody, "", many),
              testing::AllOf(HasSubstr("wants 1000 nodes, the pool has 2"), HasSubstr("--wait")));
  many.nodes = 2;
  EXPECT_EQ(refusal(Role::kAnybody, "", many), "");
  many.nodes = 3;
  many.wait = true;
  EXPECT_EQ(refusal(Role::kAnybody, "", many), "");
}

TEST_F(DoorsTest, ATokenOfAnotherKeyIsAnotherSubmission) {
  add_agents(1);
  msg::SubmitT submit = submission(1);
  submit.token = 5;
  for (const char* key : {"alice", "bob", "alice"}) say(key, Role::kUser, key, submit);
  EXPECT_EQ(pool.take<msg::AcceptedT>("bob").at(0).run, 2u);
  const auto accepted = pool.take<msg::AcceptedT>("alice");
  ASSERT_EQ(accepted.size(), 2u);
  EXPECT_EQ(accepted[0].run, 1u);
  EXPECT_EQ(accepted[1].run, 1u);
}

TEST_F(DoorsTest, ADataAddressThatOthersCannotReachIsRefused) {
  msg::RegisterT info = registration("a");
  info.data_endpoint = "tcp://127.0.0.1:*";
  EXPECT_THAT(
      refusal(Role::kAgent, "office", info, "192.168.1.7"),
      HasSubstr("offers its data at tcp://127.0.0.1:*, which no other machine can reach, and connects from "
                "192.168.1.7: give it --data-address 192.168.1.7"));
  for (const char* elsewhere : {"::ffff:192.168.1.7", "fd00::7"})
    EXPECT_NE(refusal(Role::kAgent, "office", info, elsewhere), "") << elsewhere;
  for (const char* here : {"127.0.0.1", "::ffff:127.0.0.1", "::1", ""})
    EXPECT_EQ(refusal(Role::kAgent, "office", info, here), "") << here;
  info.name = "b";
  info.data_endpoint = "tcp://192.168.1.7:*";
  EXPECT_EQ(refusal(Role::kAgent, "other", info, "192.168.1.7"), "");
}

// One agent is on the machine of the scheduler, the other elsewhere. The agent at fault is named at once, not
// after a time-out.
TEST_F(DoorsTest, AGroupThatCannotReachAMemberNamesIt) {
  add_agents(2);
  const uint64_t run = submit(2);
  pool.receive("a", prepared(run, "tcp://127.0.0.1:4000"));
  pool.receive("b", prepared(run, "tcp://192.168.1.7:4000"));
  EXPECT_EQ(pool.run(run).state, RunState::Failed);
  EXPECT_THAT(pool.run(run).detail,
              HasSubstr("node 'a' offers its data at tcp://127.0.0.1:4000, which node 'b' at "));
}

TEST_F(DoorsTest, WrongEndpointsAreRefused) {
  for (const std::string& wrong :
       {std::string(), std::string("nonsense"), std::string("tcp://host"), std::string("tcp://a:1\n"),
        std::string("tcp://a:99999"), std::string("tcp://a b:1"), "ipc:///" + std::string(107, 'x')}) {
    pool = Harness();
    agents.clear();
    add_agents(1);
    const uint64_t run = submit(1);
    pool.receive("a", prepared(run, wrong));
    EXPECT_EQ(pool.run(run).state, RunState::Failed) << wrong;
    EXPECT_THAT(pool.run(run).detail, HasSubstr("node 'a' gave no usable endpoint"));
    msg::RegisterT info = registration("b");
    info.holder_endpoint = wrong;
    EXPECT_EQ(refusal(Role::kAgent, "", info).empty(), wrong.empty()) << wrong;
  }
}

// Other members would fail to connect, and would seem to be at fault.
TEST_F(DoorsTest, WrongKeysOfEndpointsAreRefused) {
  const std::string key(64, 'a'), endpoint = "tcp://1.2.3.4:5";
  for (const auto& [of_pool, of_member, given, why] :
       {std::tuple("farm", endpoint, std::string(), "gave no usable key"),
        {"farm", endpoint, key.substr(1), "gave no usable key"},
        {"farm", endpoint, std::string(64, 'g'), "gave no usable key"},
        {"farm", endpoint, key, ""},
        {"farm", "ipc:///folder/x", std::string(), ""},
        {"farm", "ipc:///folder/x", key, "gave a key"},
        {"", endpoint, key, "gave a key"},
        {"", endpoint, std::string(), ""}}) {
    pool = Harness();
    say("a", Role::kAgent, of_pool, registration("a"));
    const uint64_t run = submit(1);
    msg::PreparedT message = prepared(run, of_member);
    message.public_key = given;
    pool.receive("a", message);
    EXPECT_EQ(pool.run(run).state, *why == '\0' ? RunState::Running : RunState::Failed) << of_pool << given;
    EXPECT_THAT(pool.run(run).detail, HasSubstr(*why == '\0' ? "" : std::string("node 'a' ") + why));
  }
}

// Data travels encrypted between all members of a group or none. On one machine both kinds pass as local.
TEST_F(DoorsTest, AMemberWithoutAKeyAmongOthersIsTheOneToDoWithout) {
  for (const char* name : {"a", "b", "c"}) say(name, Role::kAgent, "farm", registration(name));
  const uint64_t run = submit(3);
  for (const char* name : {"a", "b", "c"}) {
    const bool in_folder = *name == 'c';
    msg::PreparedT message = prepared(run, in_folder ? "ipc:///folder/c" : "tcp://127.0.0.1:4000");
    if (!in_folder) message.public_key = std::string(64, 'a');
    pool.receive(name, message);
  }
  EXPECT_THAT(pool.run(run).detail,
              HasSubstr("node 'c' offers its data at ipc:///folder/c, which node 'a' at "));
  EXPECT_THAT(pool.run(run).detail, HasSubstr("one has no key"));
}

// Each member of a run gets the addresses of all others.
TEST_F(DoorsTest, AddressesAndKeysOfAgentsAreShort) {
  for (std::string msg::RegisterT::*text : {&msg::RegisterT::data_endpoint, &msg::RegisterT::holder_endpoint,
                                            &msg::RegisterT::holder_key, &msg::RegisterT::fetch_key})
    for (const std::string& bad : {std::string(2 << 20, 'x'), std::string("tcp://1.2.3.4:5\n")}) {
      msg::RegisterT info = registration("a");
      info.*text = bad;
      EXPECT_THAT(refusal(Role::kAgent, "farm", info), HasSubstr("short and printable"));
    }
}

// Other agents of a group connect with them.
TEST_F(DoorsTest, KeysOfAgentsAreKeys) {
  for (std::string msg::RegisterT::*key : {&msg::RegisterT::holder_key, &msg::RegisterT::fetch_key})
    for (const std::string& bad : {std::string("x"), std::string(64, 'g'), std::string(65, 'a')}) {
      msg::RegisterT info = registration("a");
      info.*key = bad;
      EXPECT_THAT(refusal(Role::kAgent, "farm", info), HasSubstr("keys have 64 hexadecimal digits")) << bad;
    }
  msg::RegisterT info = registration("a");
  info.holder_key = info.fetch_key = std::string(64, 'a');
  pool.receive("a", info);
  EXPECT_EQ(pool.core.nodes().size(), 1u);
}

// What other agents send there would not be encrypted.
TEST_F(DoorsTest, AHolderOfAPoolWithKeysHasAKey) {
  const std::string key(64, 'a');
  msg::RegisterT info = registration("a");
  info.data_endpoint = "tcp://1.2.3.4:*";
  info.holder_endpoint = "tcp://1.2.3.4:5";
  EXPECT_THAT(refusal(Role::kAgent, "farm", info), HasSubstr("needs keys"));
  info.holder_key = key;
  EXPECT_THAT(refusal(Role::kAgent, "farm", info), HasSubstr("needs keys")) << "the other one is missing";
  info.fetch_key = key;
  EXPECT_EQ(refusal(Role::kAgent, "farm", info), "");
  msg::RegisterT private_folder = registration("b");
  private_folder.data_endpoint = private_folder.holder_endpoint = "ipc:///folder/x";
  EXPECT_EQ(refusal(Role::kAgent, "office", private_folder), "");
}

TEST_F(DoorsTest, NobodyMakesThePoolForgetTheRunsOfOthers) {
  CoreOptions options;
  options.max_runs = 4;
  pool.core = Core(options);
  add_agents(1);
  msg::SubmitT waits = submission(2);
  waits.wait = true;
  std::vector<uint64_t> runs;
  for (const char* key : {"alice", "bob", "bob", "bob", "bob", "bob"}) {
    say(key, Role::kUser, key, waits);
    runs.push_back(pool.take<msg::AcceptedT>(key).at(0).run);
    say(key, Role::kUser, key, msg::StopRunT{{}, runs.back()});
  }
  EXPECT_EQ(pool.run(runs.front()).run, runs.front()) << "alice's";
  EXPECT_EQ(pool.run(runs[1]).run, 0u) << "bob's first one";
}

// ---- what one key may hold

class QuotaTest : public DoorsTest {
 protected:
  // A submission that waits, since the pool never has so many nodes.
  static msg::SubmitT waiting() { return submission(64); }
  uint64_t accepted(const std::string& key, msg::SubmitT message) {
    say(key, Role::kUser, key, std::move(message));
    const auto answers = pool.take<msg::AcceptedT>(key);
    return answers.empty() ? 0 : answers.front().run;
  }
  // A snapshot whose files nobody has.
  static comm::Snapshot invented(size_t files, const std::string& holder = "") {
    comm::Snapshot snapshot{.step = 1};
    for (size_t i = 0; i < files; ++i) {
      const std::string name = "file-" + std::to_string(i);
      snapshot.files.push_back({name, comm::content_id(std::as_bytes(std::span(name))), 1, {holder}});
    }
    return snapshot;
  }
  // An event of about so many bytes as it is kept.
  static std::string event_of(size_t bytes) {
    nlohmann::json event = {{"event", "x"}};
    for (size_t i = 0; i * 1000 < bytes; ++i) event["t" + std::to_string(i)] = std::string(990, 'x');
    return event.dump();
  }
  size_t bytes_of_events(const std::string& watcher, uint64_t run) {
    pool.inbox.clear();
    say(watcher, Role::kAdmin, "root", msg::WatchT{{}, run});
    size_t bytes = 0;
    for (const msg::RunEventT& event : pool.take<msg::RunEventT>(watcher)) bytes += event.json.size();
    return bytes;
  }
};

TEST_F(QuotaTest, AKeyMayHaveSoManyRunsThatHaveNotEnded) {
  CoreOptions options;
  options.max_of_key.runs = 3;
  pool = Harness(options);
  std::vector<uint64_t> runs;
  for (int i = 0; i < 3; ++i) runs.push_back(accepted("alice", waiting()));
  EXPECT_THAT(refusal(Role::kUser, "alice", waiting()),
              HasSubstr("would have 4 runs that wait or work, and one key may have 3"));
  EXPECT_NE(accepted("bob", waiting()), 0u);
  say("alice", Role::kUser, "alice", msg::StopRunT{{}, runs[1]});
  EXPECT_NE(accepted("alice", waiting()), 0u);
  pool.restart();
  EXPECT_NE(refusal(Role::kUser, "alice", waiting()), "") << "the next scheduler counts them, too";
}

TEST_F(QuotaTest, AKeyMayHaveSoManyBytes) {
  CoreOptions options;
  options.max_of_key.bytes = 1 << 20;
  pool = Harness(options);
  msg::SubmitT large = waiting();
  large.experiment += "\n#" + std::string(200'000, 'x');
  size_t runs = 0;
  while (runs < 100 && accepted("alice", large) != 0) ++runs;
  EXPECT_LE(runs, 5u);
  EXPECT_GE(runs, 1u);
  EXPECT_THAT(refusal(Role::kUser, "alice", large), HasSubstr("bytes of submissions and events"));
  EXPECT_NE(accepted("bob", large), 0u);
  // Its runs that have ended are forgotten to make room.
  say("alice", Role::kUser, "alice", msg::StopRunT{{}, 1});
  EXPECT_NE(accepted("alice", large), 0u);
  EXPECT_EQ(pool.run(1).run, 0u);
}

TEST_F(QuotaTest, AllKeysTogetherMayHaveSoManyBytes) {
  CoreOptions options;
  options.max_bytes = 1 << 20;
  pool = Harness(options);
  msg::SubmitT large = waiting();
  large.experiment += "\n#" + std::string(200'000, 'x');
  size_t runs = 0;
  while (runs < 100 && accepted("user " + std::to_string(runs), large) != 0) ++runs;
  EXPECT_LE(runs, 5u);
  EXPECT_THAT(refusal(Role::kUser, "bob", large), HasSubstr("there is no room for another one"));
}

TEST_F(QuotaTest, FilesToBeginFromAreAsManyAsTheModelHas) {
  CoreOptions options;
  options.data_port = 1;
  options.max_of_key.addresses = 50;
  pool = Harness(options);
  msg::SubmitT resumed = waiting();
  resumed.resume_files = msg::to_table(invented(1000));
  EXPECT_THAT(refusal(Role::kUser, "alice", resumed),
              HasSubstr("the snapshot has 1000 files, and one of this experiment has at most 28"));
  resumed.resume_files = msg::to_table(invented(20));
  for (int i = 0; i < 2; ++i) EXPECT_NE(accepted("alice", resumed), 0u);
  EXPECT_THAT(refusal(Role::kUser, "alice", resumed),
              HasSubstr("60 files in the store that runs begin from"));
  EXPECT_NE(accepted("bob", resumed), 0u);
  say("alice", Role::kUser, "alice", msg::StopRunT{{}, 1});
  EXPECT_NE(accepted("alice", resumed), 0u);
}

// What else the list says is not kept: it would be written down and sent to agents.
TEST_F(QuotaTest, OfFilesToBeginFromOnlyWhatAgentsNeedIsKept) {
  CoreOptions options;
  options.data_port = 1;
  pool = Harness(options);
  add_agents(1);
  msg::SubmitT resumed = submission(1);
  resumed.resume_files = msg::to_table(invented(20, std::string(100'000, 'h')));
  ASSERT_NE(accepted("alice", resumed), 0u);
  EXPECT_EQ(msg::snapshot_of(*pool.take<msg::PrepareT>("a").at(0).snapshot), invented(20));
}

TEST_F(QuotaTest, AnEventIsMeasuredAsItIsKept) {
  add_agents(1);
  const uint64_t run = submit(1);
  pool.receive("client", msg::WatchT{{}, run});
  pool.inbox["client"].clear();
  nlohmann::json event = {{"event", "x"}};
  for (int i = 0; i < 60; ++i) event["t" + std::to_string(i)] = std::string(1000, '\x7f');  // kept as \\x7f
  ASSERT_LT(event.dump().size(), 64u << 10);
  pool.receive("a", msg::RunEventT{{}, run, event.dump()});
  EXPECT_TRUE(pool.take<msg::RunEventT>("client").empty());
  for (int i = 10; i < 60; ++i) event.erase("t" + std::to_string(i));
  pool.receive("a", msg::RunEventT{{}, run, event.dump()});
  EXPECT_EQ(pool.take<msg::RunEventT>("client").size(), 1u);
}

TEST_F(QuotaTest, EventsOfARunHaveSoManyBytes) {
  CoreOptions options;
  options.max_run_event_bytes = 100'000;
  pool = Harness(options);
  add_agents(1);
  const uint64_t run = accepted("alice", submission(1));
  prepare(run, {"a"});
  for (int i = 0; i < 40; ++i) pool.receive("a", msg::RunEventT{{}, run, event_of(20'000)});
  EXPECT_LE(bytes_of_events("before", run), 100'000u);
  EXPECT_GE(bytes_of_events("before", run), 20'000u);
  pool.restart();
  EXPECT_LE(bytes_of_events("after", run), 100'000u);
  EXPECT_GE(bytes_of_events("after", run), 20'000u);
}

TEST_F(QuotaTest, EventsOfAKeyHaveSoManyBytes) {
  CoreOptions options;
  options.max_of_key.bytes = 300'000;
  pool = Harness(options);
  add_agents(10);
  size_t bytes = 0;
  for (size_t i = 0; i < agents.size(); ++i) {
    const uint64_t run = accepted("alice", submission(1));
    if (run == 0) break;
    prepare(run, pool.run(run).node_names);
    for (int event = 0; event < 20; ++event)
      pool.receive(pool.run(run).node_names.at(0), msg::RunEventT{{}, run, event_of(20'000)});
  }
  const auto runs = pool.core.runs();  // before they are watched
  for (const msg::RunStatusT& run : runs) bytes += bytes_of_events("watcher", run.run);
  EXPECT_LE(bytes, 400'000u) << "each run keeps its newest event";
}

TEST_F(QuotaTest, AKeyMayHaveSoManyWatches) {
  CoreOptions options;
  options.max_of_key.watches = 3;
  pool = Harness(options);
  const uint64_t run = accepted("alice", waiting()), other = accepted("bob", waiting());
  for (const char* peer : {"1", "2", "3", "3"}) {
    say(peer, Role::kUser, "alice", msg::WatchT{{}, run});
    EXPECT_TRUE(pool.take<msg::RefusedT>(peer).empty());
  }
  EXPECT_THAT(refusal(Role::kUser, "alice", msg::WatchT{{}, run}), HasSubstr("4 watches"));
  EXPECT_EQ(refusal(Role::kUser, "bob", msg::WatchT{{}, other}), "");
  pool.handle(PeerGone{"2"});
  EXPECT_EQ(refusal(Role::kUser, "alice", msg::WatchT{{}, run}), "");
}

TEST_F(QuotaTest, AWatchCountsForWhoWatches) {
  CoreOptions options;
  options.max_of_key.watches = 2;
  pool = Harness(options);
  const uint64_t run = accepted("alice", waiting()), other = accepted("alice", waiting());
  for (const char* peer : {"1", "2"}) {
    say(peer, Role::kAdmin, "root", msg::WatchT{{}, run});
    EXPECT_TRUE(pool.take<msg::RefusedT>(peer).empty());
  }
  EXPECT_THAT(refusal(Role::kAdmin, "root", msg::WatchT{{}, other}), HasSubstr("3 watches"));
  EXPECT_EQ(refusal(Role::kUser, "alice", msg::WatchT{{}, run}), "") << "the administrator's are not hers";
  say("alice", Role::kUser, "alice", msg::StopRunT{{}, run});
  EXPECT_EQ(refusal(Role::kAdmin, "root", msg::WatchT{{}, other}), "") << "an ended run has no watches";
}

// A submission may be long, and a run changes often.
TEST_F(QuotaTest, WhatWasSubmittedIsWrittenOnce) {
  add_agents(1);
  msg::SubmitT large = submission(1);
  large.experiment += "\n#" + std::string(200'000, 'x');
  say("alice", Role::kUser, "alice", large);
  const uint64_t before = pool.written_bytes;
  EXPECT_GE(before, 200'000u);
  prepare(1, {"a"});
  pool.receive("a", msg::RunEventT{{}, 1, R"({"event":"started"})"});
  say("alice", Role::kUser, "alice", msg::StopRunT{{}, 1});
  EXPECT_LT(pool.written_bytes - before, 20'000u);
  pool.restart();
  EXPECT_EQ(pool.run(1).name, "run");
  say("alice", Role::kUser, "alice", msg::FindRunFilesT{{}, 1});
  EXPECT_EQ(pool.take<msg::RunFilesT>("alice").at(0).experiment, large.experiment);
}

TEST_F(QuotaTest, OfOlderRunsOnlyTheEndOfTheLogIsKept) {
  CoreOptions options;
  options.max_whole_logs = 2;
  options.max_run_event_bytes = 320'000;
  pool = Harness(options);
  add_agents(1);
  for (uint64_t run = 1; run <= 4; ++run) {
    ASSERT_EQ(accepted("alice", submission(1)), run);
    prepare(run, {"a"});
    for (int i = 0; i < 10; ++i) pool.receive("a", msg::RunEventT{{}, run, event_of(5'000)});
    pool.end("a", run, Outcome::Ok);
  }
  EXPECT_THAT(pool.shortened, testing::ElementsAre(1u, 2u));
  EXPECT_LE(bytes_of_events("w", 1), 10'000u);
  EXPECT_GE(bytes_of_events("w", 4), 45'000u);
  pool.restart();
  EXPECT_LE(bytes_of_events("w", 1), 10'000u);
  ASSERT_EQ(accepted("alice", submission(1)), 5u);
  say("alice", Role::kUser, "alice", msg::StopRunT{{}, 5});
  EXPECT_THAT(pool.shortened, testing::ElementsAre(1u, 2u, 3u)) << "each once";
}

// Its nodes never hear of the group, so they are free at once.
TEST_F(QuotaTest, AGroupWhoseFilesNobodyCanBeToldOfHoldsNoNodes) {
  CoreOptions options;
  options.data_port = 1;
  pool = Harness(options);
  constexpr uint32_t kModelets = 3500;
  msg::SubmitT large = submission(1, "large", kModelets);
  large.shape->labels = kModelets;
  add_agents(1);
  ASSERT_NE(accepted("alice", large), 0u);
  prepare(1, {"a"});
  comm::Snapshot snapshot{.epoch = 1};
  for (size_t i = 0; i < 2 * kModelets; ++i) {
    const std::string name = std::to_string(i) + std::string(120, 'x');
    snapshot.files.push_back({name, comm::content_id(std::as_bytes(std::span(name))), 1, {"", "a"}});
    for (char holder = 'p'; holder < 'v'; ++holder)
      snapshot.files.back().holders.push_back(std::string(64, holder));
  }
  pool.receive("a", held_message(1, 0, snapshot));
  pool.receive("b", registration("b"));
  pool.receive("a", msg::LeaveT{});
  EXPECT_EQ(pool.run(1).state, msg::RunState::Failed) << pool.run(1).detail;
  EXPECT_THAT(pool.run(1).detail, HasSubstr("give it fewer modelets"));
  EXPECT_TRUE(pool.take<msg::AbortT>("b").empty());
  EXPECT_EQ(pool.node("b").run, 0u);
  ASSERT_NE(accepted("bob", submission(1)), 0u);
  EXPECT_EQ(pool.take<msg::PrepareT>("b").size(), 1u);
}

// What the scheduler does for a message must not grow with the square of the runs that wait.
TEST_F(QuotaTest, ManyRunsThatWaitAreLookedAtOnceForManyMessages) {
  add_agents(1);
  pool.receive("client", msg::DrainNodeT{{}, "a", true});
  std::vector<uint64_t> runs;
  for (int i = 0; i < 200; ++i) runs.push_back(submit(1));
  // The node may work again, and the first runs are stopped, before anything follows from it. A look after
  // each message would find the next run, which can begin, and ask for its plan.
  pool.core.add(pool.now, Received{"client", msg::DrainNodeT{{}, "a", false}});
  const uint64_t last = runs.back();
  for (const uint64_t run : runs)
    if (run != last) pool.core.add(pool.now, Received{"client", msg::StopRunT{{}, run}});
  const std::vector<Action> actions = pool.core.take();
  std::vector<uint64_t> planned;
  for (const Action& action : actions)
    if (const auto* request = std::get_if<PlanRequest>(&action)) planned.push_back(request->run);
  EXPECT_THAT(planned, testing::ElementsAre(last));
  const auto persists = std::ranges::count_if(
      actions, [](const Action& action) { return std::holds_alternative<Persist>(action); });
  EXPECT_EQ(persists, 1);
  ASSERT_TRUE(std::holds_alternative<Persist>(actions.front()));
  EXPECT_GE(std::get<Persist>(actions.front()).records.runs.size(), runs.size() - 1);
}

// The files of a snapshot are as many as the run has modelets, whatever an agent says.
TEST_F(QuotaTest, AnAgentReportsNoMoreFilesThanTheRunHas) {
  add_agents(1);
  say("alice", Role::kUser, "alice", submission(1));
  prepare(1, {"a"});
  const auto report = [&](size_t files) {
    comm::Snapshot snapshot = invented(files, "a");
    snapshot.epoch = 1;
    pool.receive("a", held_message(1, 0, snapshot));
    return pool.core.known_data().size();
  };
  const size_t before = pool.core.known_data().size();
  EXPECT_EQ(report(1000), before);
  EXPECT_EQ(report(20), before + 20);
}

}  // namespace
}  // namespace modelet::scheduler::test
