// Messages of agents that are doubled, that come late, or that belong to a group that is over: they change
// nothing, and are counted.
#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/comm/control/samples.h"
#include "tests/scheduler/core/recovery_harness.h"

namespace modelet::scheduler::test {
namespace {

using testing::HasSubstr;

constexpr const char* kEvent = R"({"event": "note", "text": "something"})";

struct Outdated {
  const char* name;
  const char* called;  // in the log
  // Called with the run's number, after the run has lost a node and formed its second group.
  std::function<msg::ToSchedulerMessage(uint64_t run)> message;
};

const std::vector<Outdated> kOutdated = {
    {"Readiness", "a report of readiness",
     [](uint64_t run) { return prepared(run, "tcp://elsewhere:1", 1); }},
    {"ReadinessAgain", "a report of readiness",
     [](uint64_t run) { return prepared(run, "tcp://elsewhere:1", 2); }},
    {"ReadinessForNoRun", "a report of readiness",
     [](uint64_t) { return prepared(77, "tcp://elsewhere:1", 1); }},
    {"End", "a report of an end", [](uint64_t run) { return done(run, msg::Outcome::Failed, 0, "", 1); }},
    {"EndOfTheFuture", "a report of an end",
     [](uint64_t run) { return done(run, msg::Outcome::Ok, 0, "", 9); }},
    {"EndOfNoRun", "a report of an end", [](uint64_t) { return done(77, msg::Outcome::Ok); }},
    {"EventOfAFormerGroup", "an event",
     [](uint64_t run) {
       return msg::RunEventT{{}, run, kEvent, 1, 0};
     }},
    {"EventAgain", "an event",
     [](uint64_t run) {
       return msg::RunEventT{{}, run, kEvent, 2, 1};
     }},
    {"EventOfNoRun", "an event",
     [](uint64_t) {
       return msg::RunEventT{{}, 77, kEvent, 1, 0};
     }},
    {"EventThatIsNone", "an event",
     [](uint64_t run) {
       return msg::RunEventT{{}, run, "[", 2, 0};
     }},
    {"MissedRank", "a report of a missed rank",
     [](uint64_t run) {
       return msg::PeerMissedT{{}, run, 1, 1, "silent"};
     }},
    {"MissedRankThatIsNone", "a report of a missed rank",
     [](uint64_t run) {
       return msg::PeerMissedT{{}, run, 2, 9, "silent"};
     }},
    {"MissedRankOfAStepBefore", "a report of a missed rank",
     [](uint64_t run) { return msg::PeerMissedT{{}, run, 2, 1, "silent", false, 19}; }},
    {"MissedRankIsBack", "a report of a missed rank",
     [](uint64_t run) { return msg::PeerMissedT{{}, run, 1, 1, "", true}; }},
    {"FilesAgain", "a report of files",
     [](uint64_t run) {
       return held(run, 1, 10, 0, {"a", "b"}, true);
     }},
    {"FilesOfNoRun", "a report of files",
     [](uint64_t) {
       return held(77, 1, 10, 0, {"a", "b"});
     }},
    {"Heartbeat", "a heartbeat", [](uint64_t run) { return msg::HeartbeatT{{}, 0, run, 3, 2, 1}; }},
};

class OutdatedTest : public RecoveryTest, public testing::WithParamInterface<Outdated> {};

TEST_P(OutdatedTest, ChangesNothingAndIsCounted) {
  start({"a", "b", "c"});
  snapshot(10, true);
  pool.receive("c", msg::LeaveT{});
  for (const char* name : {"a", "b"})
    pool.receive(name, done(run, msg::Outcome::Failed, 12, "a peer is gone", 1));
  get_ready({"a", "b"});
  pass(2, {"a", "b"}, 20);
  pool.receive("a", msg::RunEventT{{}, run, kEvent, 2, 1});
  ASSERT_EQ(status().epoch, 2u);

  const auto everything = [&] { return pool.written.read(); };
  const auto record = everything().runs.at(0).text;
  const size_t events = everything().events.size();
  pool.inbox.clear();
  pool.log.clear();
  for (int times = 1; times <= 2; ++times) {
    pool.receive("a", GetParam().message(run));
    EXPECT_EQ(std::ranges::count(pool.log, '\n'), times) << pool.log;
  }
  EXPECT_THAT(pool.log, HasSubstr(fmt::format("node 'a': ignored {}:", GetParam().called)));
  for (const auto& [peer, messages] : pool.inbox) EXPECT_TRUE(messages.empty()) << peer;
  EXPECT_EQ(everything().runs.at(0).text, record);
  EXPECT_EQ(everything().events.size(), events);
  EXPECT_EQ(status().state, msg::RunState::Running);
  EXPECT_EQ(status().step, 20u);
  EXPECT_EQ(pool.node("a").step, 20u);
}

// RegisterT names the run, too, but it may come at any time.
TEST(Outdated, EachKindOfMessageOfAGroupIsListed) {
  std::set<size_t> listed;
  for (const Outdated& each : kOutdated) listed.insert(each.message(1).index());
  for (const msg::ToSchedulerMessage& message : modelet::test::messages_to_scheduler()) {
    const bool is_of_a_group = std::visit(
        []<class Message>(const Message& any) {
          return requires { any.run + any.epoch; }
          &&!std::is_same_v<Message, msg::RegisterT>;
        },
        message);
    EXPECT_TRUE(!is_of_a_group || listed.contains(message.index())) << "alternative " << message.index();
  }
}

INSTANTIATE_TEST_SUITE_P(EachKind, OutdatedTest, testing::ValuesIn(kOutdated),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace modelet::scheduler::test
