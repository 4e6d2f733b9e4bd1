// Agents that are not let in yet: they wait, are shown, and are let in by an administrator or an invitation. Nodes that
// were lost are shown for a day.
#include <gmock/gmock.h>

#include <chrono>

#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using comm::Role;
using msg::NodeState;
using testing::AllOf;
using testing::HasSubstr;

class EntryTest : public CoreTest {
 protected:
  static std::string key(char digit) { return std::string(64, digit); }

  void say(const std::string& peer, Role role, const std::string& name, const std::string& public_key,
           const msg::ToSchedulerMessage& message, const std::string& address = "10.0.0.1") {
    pool.handle(Received{peer, message, {role, name, public_key}, address});
  }
  void knock(const std::string& peer, const std::string& name, const std::string& public_key,
             const std::string& address = "10.0.0.1", uint16_t protocol = msg::kControlVersion) {
    msg::RegisterT info = registration(name);
    info.protocol = protocol;
    say(peer, Role::kNobody, "", public_key, info, address);
  }
  std::string refusal(const std::string& peer) {
    const auto refused = pool.take<msg::RefusedT>(peer);
    return refused.empty() ? "" : refused.front().reason;
  }
  std::vector<msg::NodeStatusT> pending() const {
    std::vector<msg::NodeStatusT> list = pool.core.nodes(true);
    std::erase_if(list, [](const auto& node) { return node.state != NodeState::Pending; });
    return list;
  }
  // What the core wants the server to do about these, which the harness leaves alone.
  std::vector<LetIn> let_in(const Event& event) {
    std::vector<LetIn> wanted;
    for (Action& action : pool.core.handle(pool.now, event)) {
      if (auto* entry = std::get_if<LetIn>(&action)) wanted.push_back(std::move(*entry));
      if (auto* send = std::get_if<Send>(&action)) pool.inbox[send->peer].push_back(std::move(send->message));
    }
    return wanted;
  }
};

TEST_F(EntryTest, AnAgentWithAnUnknownKeyWaitsAndIsShown) {
  knock("p", "alpha", key('a'));
  const auto told = pool.take<msg::PendingT>("p");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told.front().reason,
              AllOf(HasSubstr("modelet approve alpha"), HasSubstr("agent " + key('a') + " alpha")));
  pool.now += 5;
  knock("p", "alpha", key('a'));
  const auto list = pending();
  ASSERT_EQ(list.size(), 1u) << "asked twice, shown once";
  EXPECT_EQ(list[0].name, "alpha");
  EXPECT_EQ(list[0].address, "10.0.0.1");
  EXPECT_EQ(list[0].key, key('a'));
  EXPECT_EQ(list[0].state_seconds, 5);
  EXPECT_THAT(list[0].why, HasSubstr("modelet approve alpha"));
  EXPECT_TRUE(pool.core.nodes().empty()) << "it is no node";
  pool.pass(61);
  EXPECT_TRUE(pending().empty()) << "it is gone";
}

TEST_F(EntryTest, AnAgentOfTheReleaseBeforeIsRefusedAsItAlwaysWas) {
  knock("p", "alpha", key('a'), "10.0.0.1", 0);
  EXPECT_THAT(refusal("p"), HasSubstr("does not know this agent's key"));
  EXPECT_TRUE(pending().empty());
}

TEST_F(EntryTest, OnlyAnAdministratorLetsIn) {
  knock("p", "alpha", key('a'));
  pool.take<msg::PendingT>("p");
  for (const Role role : {Role::kUser, Role::kNobody, Role::kAgent}) {
    say("q", role, "bob", key('b'), msg::ApproveNodeT{{}, "alpha"});
    EXPECT_NE(refusal("q"), "");
  }
  const Received approval{"q", msg::ApproveNodeT{{}, "alpha"}, {Role::kAdmin, "root", key('c')}};
  const auto wanted = let_in(approval);
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].key, key('a'));
  EXPECT_EQ(wanted[0].name, "alpha");
  EXPECT_EQ(pending().size(), 1u) << "until the list has it";
  pool.handle(LetInDone{wanted[0], "the disk is full"});
  EXPECT_THAT(refusal("q"), HasSubstr("the disk is full"));
  EXPECT_EQ(pending().size(), 1u);
  pool.handle(LetInDone{wanted[0], ""});
  EXPECT_EQ(pool.take<msg::NodeListT>("q").size(), 1u);
  EXPECT_EQ(pool.take<msg::RegisterAgainT>("p").size(), 1u) << "it need not wait any longer";
  EXPECT_TRUE(pending().empty());
  say("p", Role::kAgent, "alpha", key('a'), registration("alpha"));
  EXPECT_EQ(pool.node("alpha").address, "10.0.0.1");
}

TEST_F(EntryTest, OfSeveralWithOneNameTheKeyTells) {
  knock("p", "alpha", key('a'));
  knock("q", "alpha", key('b'));
  const auto approve = [&](const std::string& node) {
    return let_in(Received{"admin", msg::ApproveNodeT{{}, node}, {Role::kAdmin, "root", key('c')}});
  };
  EXPECT_TRUE(approve("alpha").empty());
  EXPECT_THAT(refusal("admin"), HasSubstr("several agents wait under the name 'alpha'"));
  EXPECT_TRUE(approve("bbb").empty()) << "too short to tell keys apart";
  ASSERT_EQ(approve(key('b').substr(0, 16)).size(), 1u);
  EXPECT_TRUE(approve("nobody").empty());
  EXPECT_THAT(refusal("admin"), HasSubstr("modelet nodes --pending"));
}

TEST_F(EntryTest, ANameOfAnotherKeyIsNotGivenAway) {
  say("p", Role::kAgent, "office", key('a'), registration("alpha"));
  knock("q", "alpha", key('b'));
  EXPECT_TRUE(
      let_in(Received{"admin", msg::ApproveNodeT{{}, "alpha"}, {Role::kAdmin, "root", key('c')}}).empty());
  EXPECT_THAT(refusal("admin"), HasSubstr("another key has the name 'alpha'"));
  EXPECT_TRUE(let_in(Received{"r", msg::EnrolT{{}, "alpha", {1, 2}}, {Role::kNobody, "", key('d')}}).empty());
  EXPECT_THAT(refusal("r"), HasSubstr("another key has the name 'alpha'"));
}

TEST_F(EntryTest, AnEnrolmentNeedsASecretAndIsAnsweredTwice) {
  const auto enrol = [&](Role role, const msg::EnrolT& message) {
    return let_in(Received{"p", message, {role, role == Role::kAgent ? "alpha" : "", key('a')}});
  };
  const auto wanted = enrol(Role::kNobody, {{}, "alpha", {1, 2, 3}});
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].secret, "\x01\x02\x03");
  pool.handle(LetInDone{wanted[0], ""});
  EXPECT_EQ(pool.take<msg::EnrolledT>("p").at(0).name, "alpha");
  EXPECT_TRUE(enrol(Role::kAgent, {{}, "alpha", {9}}).empty()) << "it takes no use of an invitation";
  EXPECT_EQ(pool.take<msg::EnrolledT>("p").size(), 1u);
  EXPECT_TRUE(enrol(Role::kNobody, {{}, "alpha", {}}).empty());
  EXPECT_THAT(refusal("p"), HasSubstr("secret"));
  EXPECT_TRUE(enrol(Role::kNobody, {{}, "../x", {1}}).empty());
  EXPECT_THAT(refusal("p"), HasSubstr("name"));
  EXPECT_TRUE(enrol(Role::kUser, {{}, "alpha", {1}}).empty());
  EXPECT_NE(refusal("p"), "");
  EXPECT_TRUE(enrol(Role::kAnybody, {{}, "alpha", {1}}).empty());
  EXPECT_THAT(refusal("p"), HasSubstr("no keys"));
}

// Whoever makes keys by the thousand must not fill the memory, nor hide the agents of others.
TEST_F(EntryTest, OnlySoManyWait) {
  const auto numbered = [](int number) { return fmt::format("{:064x}", number); };
  for (int i = 0; i < 200; ++i) knock("p" + std::to_string(i), "alpha", numbered(i), "10.6.6.6");
  EXPECT_EQ(pending().size(), CoreOptions{}.max_newcomers_of_address);
  EXPECT_THAT(pool.take<msg::PendingT>("p199").at(0).reason, HasSubstr("not shown"));
  knock("other", "beta", key('b'), "10.0.0.2");
  EXPECT_EQ(pending().size(), CoreOptions{}.max_newcomers_of_address + 1);
  for (int i = 1000; i < 2000; ++i)
    knock("p", "alpha", numbered(i), fmt::format("10.7.{}.{}", i / 256, i % 256));
  EXPECT_EQ(pending().size(), CoreOptions{}.max_newcomers);
}

TEST_F(EntryTest, ALostNodeIsShownForADay) {
  add_agents(2);
  pool.pass(10, {"b"});
  EXPECT_EQ(pool.core.nodes().size(), 1u);
  const auto shown = [&] {
    for (msg::NodeStatusT& node : pool.core.nodes(true))
      if (node.name == "a") return node;
    return msg::NodeStatusT{};
  };
  EXPECT_EQ(shown().state, NodeState::Lost);
  EXPECT_THAT(shown().why, HasSubstr("stopped answering"));
  EXPECT_GT(shown().state_seconds, 0);
  EXPECT_EQ(shown().cores, 2u);
  pool.now += 86000;
  pool.handle(Tick{});
  EXPECT_EQ(shown().state, NodeState::Lost);
  pool.now += 500;
  pool.handle(Tick{});
  EXPECT_EQ(shown().name, "");
}

class AbsentTest : public EntryTest {
 protected:
  AbsentTest() {
    pool.options.calendar = [this] {
      return std::chrono::system_clock::time_point(std::chrono::seconds(1'700'000'000 + static_cast<int64_t>(pool.now)));
    };
    pool.core = Core(pool.options);
  }
  msg::NodeStatusT shown(const std::string& name) const {
    for (msg::NodeStatusT& node : pool.core.nodes(true))
      if (node.name == name) return node;
    return {};
  }
};

TEST_F(AbsentTest, ARestartedSchedulerStillShowsLostNodes) {
  add_agents(2);
  pool.pass(10, {"b"});
  const msg::NodeStatusT before = shown("a");
  ASSERT_EQ(before.state, NodeState::Lost);
  pool.now += 3600;
  pool.restart();
  pool.handle(Tick{});
  const msg::NodeStatusT after = shown("a");
  EXPECT_EQ(after.state, NodeState::Lost);
  EXPECT_EQ(after.why, before.why);
  EXPECT_EQ(after.state_seconds, before.state_seconds + 3600) << "the time of day counts, not that of a process";
  EXPECT_EQ(after.silent_seconds, before.silent_seconds + 3600);
  EXPECT_EQ(after.cores, 2u);
  EXPECT_EQ(after.memory_bytes, before.memory_bytes);
  pool.now += 86400 - 3700;
  pool.restart();
  pool.pass(1);
  EXPECT_EQ(shown("a").state, NodeState::Lost);
  pool.pass(200);
  EXPECT_EQ(shown("a").name, "") << "after a day";
  pool.restart();
  pool.pass(1);
  EXPECT_EQ(shown("a").name, "") << "the records have forgotten it, too";
}

TEST_F(AbsentTest, WhoDoesNotComeBackToARestartedSchedulerIsLost) {
  add_agents(3);
  pool.receive("c", msg::LeaveT{});
  pool.restart();
  pool.pass(1);
  EXPECT_TRUE(pool.core.nodes(true).empty()) << "they may still come back";
  pool.receive("b2", registration("b"));
  pool.pass(10, {"b2"});
  EXPECT_EQ(shown("b").state, NodeState::Free);
  EXPECT_EQ(shown("a").state, NodeState::Lost);
  EXPECT_THAT(shown("a").why, HasSubstr("did not come back after the scheduler was restarted"));
  EXPECT_EQ(shown("c").name, "") << "it left";
  pool.receive("a2", registration("a", 2));
  pool.restart();
  pool.receive("a3", registration("a", 2));
  pool.pass(10, {"a3"});
  EXPECT_EQ(shown("a").state, NodeState::Free) << "it is lost no more";
}

TEST_F(AbsentTest, RunsWaitUntilAllAreBackOrLost) {
  add_agents(2);
  pool.restart();
  pool.pass(1);
  pool.receive("b", registration("b"));
  const uint64_t run = submit(0);
  pool.pass(1, {"b"});
  EXPECT_EQ(pool.run(run).state, msg::RunState::Queued) << "it would not get a";
  pool.receive("a", registration("a"));
  pool.pass(1, {"a", "b"});
  EXPECT_EQ(pool.run(run).state, msg::RunState::Forming);
  EXPECT_EQ(pool.run(run).node_names.size(), 2u);
  pool.restart();
  pool.pass(1);
  pool.receive("b", registration("b", 3));
  pool.pass(10, {"b"});
  EXPECT_EQ(shown("a").state, NodeState::Lost);
}

TEST_F(AbsentTest, ARecordThatMakesNoSenseIsForgotten) {
  add_agents(1);
  for (const char* text : {"{", "[]", "{}", R"({"version":7})"}) {
    pool.written.write({.nodes = {{"x", 5, text}, {"../y", 0, "{}"}}});
    pool.restart();
    pool.pass(10);
    EXPECT_EQ(shown("x").name, "") << text;
    EXPECT_EQ(shown("a").state, NodeState::Lost) << text;
    EXPECT_THAT(pool.log, HasSubstr("is forgotten: record of a node")) << text;
  }
}

// A clock that was set back must not make a loss look like one of the future, or as long ago.
TEST_F(AbsentTest, TheTimeOfDayMayGoBack) {
  add_agents(1);
  pool.pass(10);
  pool.options.calendar = [] { return std::chrono::system_clock::time_point(); };
  pool.restart();
  pool.handle(Tick{});
  pool.pass(3);
  EXPECT_EQ(shown("a").state, NodeState::Lost);
  EXPECT_EQ(shown("a").state_seconds, 3);
}

TEST_F(EntryTest, ALostNodeThatIsBackIsLostNoMore) {
  add_agents(2);
  pool.pass(10, {"b"});
  pool.receive("a2", registration("a", 2));
  size_t of_a = 0;
  for (const msg::NodeStatusT& node : pool.core.nodes(true)) of_a += node.name == "a" ? 1 : 0;
  EXPECT_EQ(of_a, 1u);
  EXPECT_EQ(pool.node("a").state, NodeState::Free);
}

TEST_F(EntryTest, EachStateSaysWhy) {
  const uint64_t run = running(1, 1);
  EXPECT_EQ(pool.node("a").state, NodeState::Training);
  EXPECT_THAT(pool.node("a").why, HasSubstr(std::to_string(run)));
  msg::HeartbeatT beat{{}, 0, run, 1};
  beat.disk_free_bytes = 77;
  beat.sent_bytes = 5;
  beat.received_bytes = 6;
  beat.suspended = "its owner is there";
  pool.receive("a", beat);
  EXPECT_EQ(pool.node("a").disk_free_bytes, 77u);
  EXPECT_EQ(pool.node("a").suspended, "its owner is there");
  EXPECT_EQ(pool.node("a").sent_bytes, 5u);
  EXPECT_EQ(pool.node("a").received_bytes, 6u);
  pool.receive("client", msg::DrainNodeT{{}, "a", true});
  EXPECT_EQ(pool.node("a").state, NodeState::Draining);
  EXPECT_THAT(pool.node("a").why, HasSubstr("modelet drain a --undo"));
  pool.receive("a", msg::LeaveRequestT{{}, 30, "others want this machine"});
  EXPECT_EQ(pool.node("a").state, NodeState::Leaving);
  EXPECT_THAT(pool.node("a").why, HasSubstr("others want this machine"));
}

}  // namespace
}  // namespace modelet::scheduler::test
