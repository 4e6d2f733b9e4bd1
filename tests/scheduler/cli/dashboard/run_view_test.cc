#include "scheduler/cli/dashboard/run_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/client.h"
#include "scheduler/cli/dashboard/run_dashboard.h"
#include "scheduler/ledger/ledger.h"
#include "tests/error_of.h"

namespace modelet::cli {
namespace {

using comm::control::RunState;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json started(unsigned nodes) {
  return {{"event", "started"}, {"step", 0}, {"steps", 100}, {"nodes", nodes}, {"threads", 3}};
}

json progress(uint64_t step, const std::vector<std::string>& names = {}) {
  json event = {{"event", "progress"},        {"step", step},      {"steps", 100}, {"loss", 0.5},
                {"samples_per_second", 70.0}, {"eta_seconds", 9.0}};
  for (const std::string& name : names)
    event["nodes"].push_back(
        {{"node", name}, {"compute_seconds", 3.0}, {"codec_seconds", 1.0}, {"wait_seconds", 4.0}});
  return event;
}

class RunViewTest : public testing::Test {
 protected:
  comm::control::RunStatusT run() { return view_.pool()->runs.at(0); }

  RunView view_{"small"};
};

TEST_F(RunViewTest, FollowsARun) {
  EXPECT_EQ(run().state, RunState::Forming);
  EXPECT_EQ(run().name, "small");
  view_.add(started(1));
  EXPECT_EQ(run().state, RunState::Running);
  ASSERT_EQ(view_.pool()->nodes.size(), 1u) << "a node that has no name yet";
  view_.add(progress(10, {"host"}));
  EXPECT_EQ(run().step, 10u);
  EXPECT_EQ(run().steps, 100u);
  EXPECT_EQ(run().loss, 0.5);
  EXPECT_EQ(run().seconds_left, 9);
  EXPECT_THAT(run().node_names, ElementsAre("host"));
  const auto state = view_.pool();
  ASSERT_EQ(state->nodes.size(), 1u);
  EXPECT_EQ(state->nodes[0].cores, 3u);
  EXPECT_EQ(state->nodes[0].step, 10u);
  EXPECT_EQ(state->nodes[0].wait_share, 0.5);
  EXPECT_EQ(state->facts.can_act, false);
  EXPECT_THAT(view_.history().names, ElementsAre("host"));
  view_.add({{"event", "checkpoint"}, {"step", 10}});
  EXPECT_EQ(run().stable_step, 10u);
  view_.add({{"event", "finished"}, {"steps", 100}});
  EXPECT_EQ(run().state, RunState::Finished);
  EXPECT_EQ(run().step, 100u);
  EXPECT_EQ(run().seconds_left, 0);
}

TEST_F(RunViewTest, TheStateStaysTheSameObjectUntilSomethingHappens) {
  view_.add(started(1));
  const auto state = view_.pool();
  view_.add(progress(1));
  EXPECT_NE(view_.pool(), state);
}

TEST_F(RunViewTest, FollowsChangesOfTheGroup) {
  view_.add(started(2));
  view_.add(progress(10, {"a", "b"}));
  view_.add({{"event", "regrouped"}, {"why", "lost b"}, {"epoch", 2}, {"step", 5}, {"nodes", {"a"}}});
  EXPECT_THAT(run().node_names, ElementsAre("a"));
  EXPECT_EQ(run().recoveries, 1u);
  EXPECT_EQ(run().epoch, 2u);
  EXPECT_EQ(view_.pool()->nodes[0].cores, 3u);
  EXPECT_EQ(view_.pool()->nodes[0].state, comm::control::NodeState::Training);
  view_.add({{"event", "failed"}, {"error", "the disk is full"}});
  EXPECT_EQ(run().state, RunState::Failed);
  EXPECT_EQ(run().detail, "the disk is full");
}

TEST_F(RunViewTest, DetailsOfTheRun) {
  view_.set_experiment("[model]\n");
  view_.set_placement(12, 4096);
  view_.add(progress(1, {"host"}));
  const scheduler::RunDetails details = view_.run(RunView::kRun);
  EXPECT_EQ(details.experiment, "[model]\n");
  ASSERT_EQ(details.placement.size(), 1u);
  EXPECT_EQ(details.placement[0].node, "host");
  EXPECT_EQ(details.placement[0].modelets, 12u);
  for (const uint64_t other : {0, 2}) {
    EXPECT_THROW(view_.run(other), scheduler::NotThere);
    EXPECT_THROW(view_.events(other, 0), scheduler::NotThere);
  }
  EXPECT_THROW(view_.log(RunView::kRun, "host", 0), scheduler::NotThere);
  EXPECT_THROW(view_.drain(nullptr, "host", true), UsageError);
  EXPECT_THROW(view_.stop(nullptr, RunView::kRun), UsageError);
}

TEST_F(RunViewTest, EventsFromAPlaceOn) {
  view_.add(started(1));
  view_.add(progress(1));
  auto log = view_.events(RunView::kRun, 0);
  EXPECT_EQ(log.next, 2u);
  EXPECT_FALSE(log.complete);
  EXPECT_EQ(json::parse(log.text.substr(0, log.text.find('\n')))["event"], "started");
  view_.add({{"event", "finished"}, {"steps", 2}});
  log = view_.events(RunView::kRun, log.next);
  EXPECT_EQ(json::parse(log.text)["event"], "finished");
  EXPECT_TRUE(log.complete);
  EXPECT_EQ(view_.events(RunView::kRun, log.next).text, "");
  EXPECT_EQ(view_.events(RunView::kRun, 1000).text, "");
}

TEST_F(RunViewTest, KeepsTheNewestEventsAndTheFirstStart) {
  view_.add(started(1));
  constexpr uint64_t kSteps = scheduler::kMostLedgerEvents + 50;
  for (uint64_t step = 1; step <= kSteps; ++step) view_.add(progress(step));
  std::vector<json> events;
  uint64_t after = 0;
  size_t answers = 0;
  for (bool more = true; more; ++answers) {
    const auto log = view_.events(RunView::kRun, after);
    EXPECT_LE(log.text.size(), 300u << 10);
    for (size_t at = 0; at < log.text.size();) {
      const size_t end = log.text.find('\n', at);
      events.push_back(json::parse(log.text.substr(at, end - at)));
      at = end + 1;
    }
    more = log.next != after;
    after = log.next;
  }
  EXPECT_GT(answers, 3u);
  EXPECT_EQ(events.size(), scheduler::kMostLedgerEvents + 1);
  EXPECT_EQ(events[0]["event"], "started");
  EXPECT_EQ(events[1]["step"], 51);
  EXPECT_EQ(events.back()["step"], kSteps);
}

TEST_F(RunViewTest, StrangeEventsDoNoHarm) {
  for (const json& strange : {json(7), json::array(), json::object(), json{{"event", 7}},
                              json{{"event", "progress"}, {"nodes", {7, "a"}}, {"step", "x"}},
                              json{{"event", "progress"}, {"step", -3}, {"loss", nullptr}},
                              json{{"event", "regrouped"}, {"nodes", {7}}}, json{{"event", "finished"}}})
    view_.add(strange);
  EXPECT_EQ(run().state, RunState::Finished);
}

// The test ends in time only if nobody is waited for in vain.
TEST_F(RunViewTest, WhoeverLooksIsToldOfTheEnd) {
  constexpr std::chrono::hours kForever{1};
  view_.wait_until_seen(kForever);  // it has not ended
  view_.add({{"event", "finished"}, {"steps", 2}});
  view_.wait_until_seen(kForever);  // nobody looks
  view_.pool();
  std::thread looker([&] { view_.events(RunView::kRun, 0); });
  view_.wait_until_seen(kForever);
  looker.join();
  view_.wait_until_seen(kForever);  // he knows
}

TEST_F(RunViewTest, LooksWhileItGoesOn) {
  std::atomic<bool> done{false};
  std::thread looker([&] {
    while (!done) {
      view_.pool();
      view_.history();
      view_.run(RunView::kRun);
      view_.events(RunView::kRun, 0);
    }
  });
  view_.add(started(1));
  for (uint64_t step = 1; step <= 200; ++step) view_.add(progress(step, {"a"}));
  done = true;
  looker.join();
  EXPECT_EQ(run().step, 200u);
}

TEST(RunDashboardTest, OnlyWhoHasTheAddressLooks) {
  RunDashboard dashboard("small", kDashboardAddress);
  dashboard.view().add(started(1));
  const std::string url = dashboard.url();
  const std::string endpoint = url.substr(0, url.find("/?"));
  EXPECT_THAT(url, HasSubstr("http://127.0.0.1:"));
  EXPECT_THAT(url, HasSubstr("#/runs/1"));
  const auto status = [&](const std::string& token) {
    comm::http::ClientRequest request{.path = "/api/pool", .headers = {}};
    if (!token.empty()) request.headers.emplace_back("Authorization", "Bearer " + token);
    constexpr double kSeconds = 60;
    return comm::http::send_request(endpoint, request, kSeconds).status;
  };
  const size_t begin = url.find("token=") + std::string("token=").size();
  const std::string token = url.substr(begin, url.find('#') - begin);
  EXPECT_EQ(status(token), 200u);
  EXPECT_EQ(status(""), 401u);
  EXPECT_EQ(status(std::string(token.size(), '0')), 401u);
  const std::string other = RunDashboard("small", kDashboardAddress).url();
  EXPECT_EQ(other.find(token), std::string::npos) << "each has a token of its own";
  EXPECT_THAT(test::error_of([] { RunDashboard("small", "nowhere"); }), HasSubstr("--dashboard"));
}

}  // namespace
}  // namespace modelet::cli
