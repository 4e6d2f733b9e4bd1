#include "node_agent/owner/owner_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/system/wake_event.h"
#include "node_agent/owner/status_text.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

using nlohmann::json;
using test::error_of;
using testing::HasSubstr;

namespace fs = std::filesystem;

// Preferences under which only the requests of the owner count, whatever else this machine does.
Preferences undisturbed() {
  Preferences preferences;
  preferences.back_off.tolerated_percent = 100;
  preferences.back_off.memory_pressure_percent = 100;
  return preferences;
}

class OwnerServiceTest : public testing::Test {
 protected:
  OwnerServiceTest() { fs::create_directories(folder_); }
  ~OwnerServiceTest() override { fs::remove_all(folder_); }

  OwnerOptions options() const {
    return {.name = "a", .work_dir = folder_, .threads = 3, .preferences = undisturbed()};
  }
  json ask(const std::string& request) const { return ask_agent(owner_socket_path(folder_, "a"), request); }

  const fs::path folder_ = "/tmp/modelet-service-" + std::to_string(::getpid());
};

TEST_F(OwnerServiceTest, SuspendsAndResumes) {
  OwnerService service(options());
  EXPECT_EQ(service.throttle().pass(), 3u);
  EXPECT_EQ(ask("pause")["threads"], 0);
  std::atomic<bool> passed{false};
  std::thread worker([&] {
    EXPECT_EQ(service.throttle().pass(), 3u);
    passed = true;
  });
  EXPECT_FALSE(passed);
  EXPECT_EQ(ask("status")["reason"], "paused by the owner");
  EXPECT_EQ(ask("resume")["threads"], 3);
  worker.join();
}

TEST_F(OwnerServiceTest, TheAgentLeavesAndComesBack) {
  OwnerService service(options());
  std::string told;
  {
    const OwnerService::Attendance attendance(service, [&](const std::string& reason) { told += reason; });
    EXPECT_EQ(ask("status")["state"], "free");
    service.count({.run = 7, .step = 100, .done = 50, .nodes = 1});
    EXPECT_EQ(ask("status")["state"], "working");
    EXPECT_FALSE(attendance.asked_to_leave());
    EXPECT_EQ(ask("drain")["state"], "leaving");
    ask("drain");
    EXPECT_TRUE(attendance.asked_to_leave());
    EXPECT_EQ(told, "the owner wants the machine") << "once";
  }
  EXPECT_EQ(ask("status")["state"], "away");
  WakeEvent stop;
  stop.set();
  EXPECT_FALSE(service.wait_until_wanted(stop.fd()));
  stop.clear();
  ask("resume");
  EXPECT_TRUE(service.wait_until_wanted(stop.fd()));
}

TEST_F(OwnerServiceTest, TheWishOutlivesTheProgram) {
  const auto now = [this](const std::string& request = "status") {
    const OwnerService service(options());
    return ask(request)["reason"].get<std::string>();
  };
  EXPECT_EQ(now("drain"), "the owner wants the machine");
  EXPECT_EQ(now(), "the owner wants the machine");
  EXPECT_EQ(now("pause 60"), "paused by the owner");
  EXPECT_EQ(now(), "paused by the owner");
  EXPECT_EQ(now("pause"), "paused by the owner");
  EXPECT_EQ(now(), "paused by the owner");
  EXPECT_EQ(now("resume"), "");
  EXPECT_EQ(now(), "");
  EXPECT_EQ(now("resume"), "") << "twice";

  const fs::path file = owner_socket_path(folder_, "a").replace_extension("wish");
  std::ofstream(file) << "pause 1000000000\n";
  EXPECT_EQ(now(), "") << "it ended years ago";
  for (const char* garbage : {"", "status", "draining"}) {
    std::ofstream(file) << garbage;
    EXPECT_THAT(error_of([&] { now(); }), HasSubstr("remove it if the agent may work"));
  }
}

TEST_F(OwnerServiceTest, AWishThatCannotBeWrittenDownIsFollowedAllTheSame) {
  const OwnerService service(options());
  fs::create_directories(owner_socket_path(folder_, "a").replace_extension("wish") / "in the way");
  EXPECT_THAT(error_of([&] { ask("pause"); }), HasSubstr("'pause' holds only until the agent ends"));
  EXPECT_EQ(ask("status")["reason"], "paused by the owner");
}

TEST_F(OwnerServiceTest, NotLentFromTheStart) {
  OwnerOptions none = options();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  const int later = (60 * local.tm_hour + local.tm_min + 12 * 60) % (24 * 60);
  none.preferences.hours = Hours{later, later + 1};
  OwnerService service(none);
  WakeEvent stop;
  stop.set();
  EXPECT_FALSE(service.wait_until_wanted(stop.fd()));
  EXPECT_EQ(service.status()["reason"], "not lent at this hour");
}

TEST_F(OwnerServiceTest, CountsRunsAndSteps) {
  OwnerService service(options());
  // The first run is grouped anew and goes on from step 1005.
  for (const Beat& beat : {Beat{},
                           {1, 0, 0, 1},
                           {1, 1010, 10, 1},
                           {},
                           {1, 0, 0, 1},
                           {1, 1006, 1, 1},
                           {2, 0, 0, 1},
                           {2, 5, 5, 1}})
    service.count(beat);
  const json status = service.status();
  EXPECT_EQ(status["runs"], 2);
  EXPECT_EQ(status["steps"], 16);
  EXPECT_EQ(status["run"], 2);
  EXPECT_GT(status["cpu_seconds"], 0);
  EXPECT_THAT(status_text(status), HasSubstr("2 runs, 16 steps"));
  EXPECT_THAT(error_of([] { status_text({{"name", 3}}); }), HasSubstr("same release"));
}

TEST_F(OwnerServiceTest, SaysWhatWasLearnedFromPrivateData) {
  EXPECT_EQ(OwnerService(options()).status()["private"], json::array());
  LearningLedger ledger(folder_ / "a.learned", {"clinic"});
  ledger.charge("clinic", 0);
  OwnerOptions with_data = options();
  with_data.ledger = &ledger;
  with_data.preferences.learning.most_rounds = 5;
  const OwnerService service(std::move(with_data));
  EXPECT_EQ(ask("status")["private"][0], json::parse(R"({"name":"clinic","runs":0,"rounds":1,"rounds_left":4,"samples":0})"));
  EXPECT_THAT(status_text(service.status()), HasSubstr("1 rounds (4 are left)"));
}

TEST_F(OwnerServiceTest, WhatItDoesNotUnderstandChangesNothing) {
  OwnerService service(options());
  for (const char* request : {"", "stop", "pause 0", "pause -1", "pause nan", "pause x", "pause 1 2",
                              "resume 1", "status status", "pause 1e9", "PAUSE"})
    EXPECT_THAT(error_of([&] { ask(request); }), HasSubstr("status, pause [MINUTES], resume, drain"))
        << request;
  EXPECT_EQ(ask("  status ")["threads"], 3);
}

}  // namespace
}  // namespace modelet::agent
