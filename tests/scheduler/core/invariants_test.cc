// Each of the invariants of core.h is noticed when it is broken, and a broken one ends the scheduler before anything
// that follows from it is written down.
#include "scheduler/core/invariants.h"

#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "scheduler/core/submission.h"
#include "scheduler/ledger/ledger.h"
#include "scheduler/server/server.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::scheduler::test {
namespace {

using msg::RunState;
using testing::HasSubstr;
using testing::StartsWith;

std::string with(std::string record, const std::string& what, const std::string& other) {
  const size_t place = record.find(what);
  EXPECT_NE(place, std::string::npos) << what << " in " << record;
  return record.replace(place, what.size(), other);
}

class InvariantsTest : public testing::Test {
 protected:
  // A run works on the node 'a', in epoch 3.
  InvariantsTest() {
    Node node{.peer = "a", .key = "the key", .info = registration("a")};
    node.bind(1, 3, 0);
    pool.names["a"] = {"the key", 0};
    pool.add(node);
    Harness other;
    other.receive("a", registration("a"));
    other.receive("client", submission(1));
    written = other.written.read().runs.at(0);
    pool.runs.emplace(1, run(RunState::Running));
    invariants.begin(pool);
    EXPECT_EQ(invariants.broken_by(pool), "");
  }

  // The run in another state, with its node at work.
  scheduler::Run run(RunState state, const nlohmann::json& changes = nlohmann::json::object()) {
    auto record = nlohmann::json::parse(written.text);
    record.update({{"state", static_cast<int>(state)}, {"step", 10}, {"epoch", 3}});
    record.update(changes);
    scheduler::Run made({1, false, record.dump(), written.submission});
    if (!made.group().members().empty()) made.member_returned(pool, made.group().members()[0], 1);
    return made;
  }
  Node& node() { return pool.nodes.at(1); }
  void prepare(uint32_t epoch, uint32_t rank) {
    msg::PrepareT message;
    message.run = 1;
    message.epoch = epoch;
    message.rank = rank;
    pool.send("a", message);
  }

  Pool pool{CoreOptions{}};
  Invariants invariants;
  RunRecord written;
};

TEST_F(InvariantsTest, ANodeWorksForOneRunThatExists) {
  node().run = 2;
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("1: node 'a' works for run 2"));
  node().run = 1;
  node().planned_for = 1;
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("1: "));
  node().run = 0;
  EXPECT_THAT(invariants.broken_by(pool), HasSubstr("does not plan with it"));
  node().planned_for = 0;
  node().run = 1;
  pool.runs.at(1) = run(RunState::Queued);
  EXPECT_THAT(invariants.broken_by(pool), HasSubstr("which is queued"));
}

TEST_F(InvariantsTest, ARunThatHasEndedDoesNotChange) {
  pool.runs.at(1) = run(RunState::Finished);
  EXPECT_EQ(invariants.broken_by(pool), "");
  pool.runs.at(1) = run(RunState::Finished, {{"step", 11}});
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("2: run 1 has ended"));
  pool.runs.at(1) = run(RunState::Running);
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("2: run 1 has ended"));
}

TEST_F(InvariantsTest, AGroupWaitsForNobodyWhoDoesNotWorkForIt) {
  node().release();
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("3: run 1 (running) waits for node 'a'"));
  nlohmann::json members = nlohmann::json::parse(written.text)["members"];
  members[0]["done"] = true;
  pool.runs.at(1) = run(RunState::Running, {{"members", members}});
  node().release();
  EXPECT_EQ(invariants.broken_by(pool), "");
  pool.runs.at(1) = run(RunState::Running, {{"members", nlohmann::json::array()}});
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("3: "));
}

TEST_F(InvariantsTest, TheEpochGrowsWithEachGroup) {
  prepare(4, 0);
  prepare(4, 1);
  prepare(5, 0);
  EXPECT_EQ(invariants.broken_by(pool), "");
  prepare(5, 0);
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("4: a group of run 1 begins with epoch"));
  pool.actions.clear();
  pool.runs.at(1) = run(RunState::Waiting, {{"epoch", 2}});
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("4: the epoch of run 1 went from 3 to 2"));
}

TEST_F(InvariantsTest, TheNameOfANodeStaysWithItsKey) {
  pool.names["a"] = {"another", 0};
  EXPECT_THAT(invariants.broken_by(pool), StartsWith("5: node 'a'"));
}

// A run of two tasks, which wait.
class TaskInvariantsTest : public testing::Test {
 protected:
  TaskInvariantsTest() {
    scheduler::Run parent(1, "", submission_of_tasks(2), "");
    parent.accept(checked_submission(parent.submit(), 1));
    pool.runs.emplace(1, std::move(parent));
    add(2, 0);
    add(3, 1);
    invariants.begin(pool);
    EXPECT_EQ(invariants.broken_by(pool), "");
  }
  void add(uint64_t id, uint32_t task) { pool.runs.emplace(id, scheduler::Run(id, pool.runs.at(1), task)); }
  void change(uint64_t id, const nlohmann::json& changes) {
    RunRecord record = pool.runs.at(id).record(0);
    auto text = nlohmann::json::parse(record.text);
    text.update(changes);
    record.text = text.dump();
    if (id == 1) record.submission = submission;
    scheduler::Run changed(record);
    if (id == 1) changed.accept(checked_submission(changed.submit(), 1));
    if (id != 1) changed.accept_task(pool.runs.at(1));
    pool.runs.at(id) = std::move(changed);
  }
  void finish(uint64_t id) { change(id, {{"state", static_cast<int>(RunState::Finished)}}); }

  Pool pool{CoreOptions{}};
  Invariants invariants;
  const std::string submission = [] {
    scheduler::Run run(1, "", submission_of_tasks(2), "");
    return run.record(0).submission;
  }();
};

TEST_F(TaskInvariantsTest, ATaskHasTwoCopiesIfNoneWaits) {
  add(4, 1);
  EXPECT_EQ(invariants.broken_by(pool), "6: task 0 of run 1 waits, and task 1 has two copies");
  finish(2);
  finish(3);
  EXPECT_EQ(invariants.broken_by(pool), "");
}

TEST_F(TaskInvariantsTest, ATaskHasNoMoreThanTwoCopies) {
  add(4, 1);
  add(5, 1);
  EXPECT_EQ(invariants.broken_by(pool), "6: task 1 of run 1 has more than two copies");
}

TEST_F(TaskInvariantsTest, TheResultOfATaskIsOneOfItsRunsThatHasFinished) {
  for (const uint64_t result : {9, 2, 3}) {
    invariants = {};
    change(1, {{"results", {result, 0}}});
    if (result == 3) finish(3);  // of another task
    EXPECT_EQ(invariants.broken_by(pool),
              "6: the result of task 0 of run 1 is run " + std::to_string(result) + ", which is none");
  }
}

TEST_F(TaskInvariantsTest, AResultStays) {
  add(4, 0);
  finish(2);
  finish(4);
  change(1, {{"results", {2, 0}}});
  EXPECT_EQ(invariants.broken_by(pool), "");
  change(1, {{"results", {4, 0}}});
  EXPECT_EQ(invariants.broken_by(pool), "6: the result of task 0 of run 1 was run 2, and is run 4");
}

TEST_F(TaskInvariantsTest, TasksEndWithTheirRun) {
  finish(1);
  EXPECT_EQ(invariants.broken_by(pool), "6: run 2 is a task of run 1, which does not go on");
}

// A run whose epoch cannot grow any more is the only way in which the program can be brought to break one.
TEST(BrokenInvariant, EndsTheSchedulerAndNotTheLedger) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "invariants";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto file = folder / "ledger.sqlite";
  Harness pool;
  pool.receive("a", registration("a"));
  pool.receive("client", submission(1));
  pool.receive("a", msg::LeaveT{});
  Records records = pool.written.read();
  records.runs.at(0).text = with(records.runs.at(0).text, R"("epoch":1,)", R"("epoch":4294967295,)");
  Ledger(file).write(records);
  const auto text_of_run = [&] { return Ledger(file).read().runs.at(0).text; };
  const std::string before = text_of_run();
  const auto work = [&] {
    Ledger ledger(file);
    ServerOptions options{.listen = "tcp://127.0.0.1:*", .insecure = true};
    options.core.heartbeat = 0.05;
    options.core.dead_after = 0.1;
    options.restored = ledger.read();
    options.persist = [&](const Records& changes) { ledger.write(changes); };
    Server server(options);
    const std::jthread agent([endpoint = server.endpoint()](const std::stop_token& stop) {
      comm::control::ClientSocket socket(endpoint);
      while (!stop.stop_requested()) {
        socket.send(registration("a"));
        socket.receive(0.1);
      }
    });
    server.run();
  };
  EXPECT_EXIT(work(), testing::KilledBySignal(SIGABRT), "invariant 4: .*epoch 0");
  EXPECT_EQ(text_of_run(), before);
}

}  // namespace
}  // namespace modelet::scheduler::test
