// Watching a run of a scheduler that goes away: each event is passed on once, and no client waits for ever.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/client/pool_client.h"
#include "scheduler/client/report.h"
#include "scheduler/client/run_on_pool.h"
#include "tests/error_of.h"
#include "tests/scheduler/client/fake_scheduler.h"
#include "tests/scheduler/pools.h"

namespace modelet::cli {
namespace {

namespace msg = comm::control;
using msg::RunState;
using test::FakeScheduler;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kRun = 7;
constexpr double kPatient = 600;

msg::RunStatusT status(RunState state) {
  msg::RunStatusT status;
  status.run = kRun;
  status.state = state;
  return status;
}

msg::RunEventT event(uint64_t number) {
  msg::RunEventT event;
  event.run = kRun;
  event.number = number;
  event.json = nlohmann::json{{"event", "progress"}, {"step", number}}.dump();
  return event;
}

// Returns two lines at a time.
msg::RunLogT log_after(uint64_t offset, uint64_t last) {
  msg::RunLogT log;
  log.run = kRun;
  for (log.next = offset; log.next < std::min(offset + 2, last);) log.text += event(++log.next).json + '\n';
  return log;
}

// A scheduler that has the events 1 to `last` of the run, and ends the run when it is asked to stop it.
FakeScheduler::Answer with_events(uint64_t last, RunState state) {
  return [=](const msg::ToSchedulerMessage& message) {
    std::vector<msg::FromSchedulerMessage> answers;
    if (std::holds_alternative<msg::WatchT>(message)) {
      for (uint64_t number = 1; number <= last; ++number) answers.emplace_back(event(number));
      answers.emplace_back(status(state));
    } else if (const auto* asked = std::get_if<msg::FindRunLogT>(&message)) {
      answers.emplace_back(log_after(asked->offset, last));
    } else if (std::holds_alternative<msg::StopRunT>(message)) {
      answers.emplace_back(status(RunState::Stopped));
    }
    return answers;
  };
}

class WatchTest : public testing::Test {
 protected:
  std::unique_ptr<FakeScheduler> scheduler =
      std::make_unique<FakeScheduler>("tcp://127.0.0.1:*", with_events(2, RunState::Running));
  const std::string endpoint = scheduler->endpoint();
  PoolClient client{endpoint};
  std::vector<uint64_t> shown;
  PoolClient::Watcher watcher{.on_event = [this](const nlohmann::json& shown_event) {
    shown.push_back(shown_event.at("step").get<uint64_t>());
  }};
};

TEST_F(WatchTest, ShowsEachEventOnceAlthoughTheSchedulerWasAway) {
  bool was_away = false;
  watcher.detach = [&] {
    if (shown.size() == 2 && !std::exchange(was_away, true)) {
      scheduler.reset();
      scheduler = std::make_unique<FakeScheduler>(endpoint, with_events(4, RunState::Finished));
    }
    return false;
  };
  EXPECT_EQ(client.watch(kRun, watcher, kPatient).state, RunState::Finished);
  EXPECT_THAT(shown, ElementsAre(1, 2, 3, 4));
}

TEST_F(WatchTest, ASchedulerThatIsBackHearsOfAStop) {
  bool stop = false;
  watcher.stop = [&] { return stop; };
  watcher.detach = [&] {
    if (shown.size() == 2 && !stop) {
      scheduler.reset();
      stop = true;
    } else if (stop && !scheduler) {
      scheduler = std::make_unique<FakeScheduler>(endpoint, with_events(3, RunState::Running));
    }
    return false;
  };
  EXPECT_EQ(client.watch(kRun, watcher, kPatient).state, RunState::Stopped);
}

// Whatever a client waits for: what its user wants ends the waiting.
TEST_F(WatchTest, ACheckEndsEveryWait) {
  FakeScheduler silent("tcp://127.0.0.1:*", [](const msg::ToSchedulerMessage&) {
    return std::vector<msg::FromSchedulerMessage>();
  });
  for (const std::string& nobody : {silent.endpoint(), std::string("tcp://127.0.0.1:1")}) {
    int checks = 0;
    PoolClient waiting(nobody, [&] {
      if (++checks == 3) throw Interrupted("enough");
    });
    for (const std::function<void()>& call : std::vector<std::function<void()>>{
             [&] { waiting.list(); }, [&] { waiting.data_port(); },
             [&] { waiting.submit(test::submission(1)); }, [&] { waiting.watch(kRun, watcher, kPatient); },
             [&] { waiting.log(kRun, "", 0, kPatient); }}) {
      checks = 0;
      EXPECT_EQ(test::error_of(call), "enough");
    }
  }
}

// Whoever presses Ctrl-C does not wait for a scheduler that is away.
TEST_F(WatchTest, AStopEndsTheWaitForASchedulerThatIsAway) {
  scheduler.reset();
  scheduler = std::make_unique<FakeScheduler>(endpoint, [](const msg::ToSchedulerMessage& message) {
    if (const auto* submit = std::get_if<msg::SubmitT>(&message))
      return std::vector<msg::FromSchedulerMessage>{msg::AcceptedT{{}, kRun, submit->token}};
    return with_events(1, RunState::Running)(message);
  });
  std::ostringstream ignored;
  Reporter reporter(true, ignored, ignored, {});
  std::atomic<bool> stop{false};
  const RunOnPool run{.submission = test::submission(1), .patience = kPatient, .check = [&] {
                        if (ignored.str().find("progress") == std::string::npos) return;
                        scheduler.reset();
                        stop = true;
                      }};
  EXPECT_EQ(test::error_of([&] { run_on_pool(endpoint, run, reporter, stop); }),
            "the scheduler does not respond; run 7 may go on: modelet stop 7 ends it");
}

TEST_F(WatchTest, SaysHowToComeBackWhenItGivesUp) {
  watcher.detach = [&] {
    if (!shown.empty()) scheduler.reset();
    return false;
  };
  const std::string why = test::error_of([&] { client.watch(kRun, watcher, 0.5); });
  EXPECT_THAT(why, HasSubstr("the scheduler at " + endpoint + " has been away for"));
  EXPECT_THAT(why, HasSubstr("modelet watch 7 --scheduler " + endpoint));
}

// A scheduler that sends only the last events to a new watcher.
FakeScheduler::Answer with_the_last(uint64_t first, uint64_t last) {
  return [=, all = with_events(last, RunState::Finished)](const msg::ToSchedulerMessage& message) {
    auto answers = all(message);
    std::erase_if(answers, [&](const auto& answer) {
      const auto* event = std::get_if<msg::RunEventT>(&answer);
      return event != nullptr && event->number < first;
    });
    return answers;
  };
}

TEST_F(WatchTest, WhatHappenedWhileItWasAwayIsReadInTheLog) {
  bool was_away = false;
  watcher.detach = [&] {
    if (shown.size() == 2 && !std::exchange(was_away, true)) {
      scheduler.reset();
      scheduler = std::make_unique<FakeScheduler>(endpoint, with_the_last(7, 8));
    }
    return false;
  };
  client.watch(kRun, watcher, kPatient);
  EXPECT_THAT(shown, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST_F(WatchTest, WhoBeginsLateSeesTheLastEventsOrAll) {
  scheduler.reset();
  scheduler = std::make_unique<FakeScheduler>(endpoint, with_the_last(3, 4));
  client.watch(kRun, watcher, kPatient);
  EXPECT_THAT(shown, ElementsAre(3, 4));
  shown.clear();
  watcher.whole = true;
  client.watch(kRun, watcher, kPatient);
  EXPECT_THAT(shown, ElementsAre(1, 2, 3, 4));
}

TEST_F(WatchTest, PastEventsAreAllOfTheLog) {
  FakeScheduler other("tcp://127.0.0.1:*", with_the_last(4, 5));
  EXPECT_EQ(PoolClient(other.endpoint()).past_events(kRun).size(), 5u);
}

}  // namespace
}  // namespace modelet::cli
