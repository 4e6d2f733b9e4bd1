// A local pool of real processes: agents that are killed, a parent that is killed, programs that do not
// start.
#include "scheduler/client/launch/local_pool.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/system/clock.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/report.h"
#include "tests/scheduler/pools.h"

namespace modelet::cli {
namespace {

using comm::control::RunState;
using test::submission;
using test::wait_until;
using testing::HasSubstr;

// A process that has ended counts as gone, even if its parent has not collected it.
bool is_gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  return !std::getline(file, text) || text.substr(text.rfind(')') + 2, 1) == "Z";
}

LocalPoolOptions fake_agents(uint32_t nodes) {
  return {.nodes = nodes, .threads = 1, .programs = FAKE_PROGRAMS};
}

uint64_t step_of(PoolClient& client, uint64_t run) {
  for (const auto& status : client.list().runs)
    if (status->run == run) return status->step;
  return 0;
}

TEST(LocalPool, ARunOutlivesAKilledAgentWhichComesBack) {
  LocalPool pool(fake_agents(3));
  PoolClient client(pool.scheduler());
  const uint64_t run = client.submit(submission(0));
  wait_until([&] { return step_of(client, run) > 0; });
  ASSERT_EQ(::kill(pool.processes()[2].pid, SIGKILL), 0);
  wait_until([&] {
    const auto runs = client.list();
    return runs.runs.front()->state == RunState::Running && runs.runs.front()->recoveries == 1;
  });
  wait_until([&] {
    pool.check();
    return client.nodes().nodes.size() == 3;
  });
}

TEST(LocalPool, StartsTheSchedulerAgainWhereItWas) {
  LocalPool pool(fake_agents(1));
  const auto kill_scheduler = [&] {
    ASSERT_EQ(::kill(pool.processes()[0].pid, SIGKILL), 0);
    wait_until([&] { return is_gone(pool.processes()[0].pid); });
  };
  kill_scheduler();
  wait_until([&] {
    pool.check();  // repeated, like in run_on_pool(): threads of the process end one by one
    try {
      return PoolClient(pool.scheduler()).nodes().nodes.size() == 1;
    } catch (const Error&) {
      return false;  // the scheduler is not there yet
    }
  });
}

TEST(LocalPool, KeepsFilesIfAsked) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "local_pool_keeps_files";
  fs::remove_all(folder);
  fs::create_directories(folder / "kept" / "of another time");
  for (const bool keep : {false, true}) {
    LocalPoolOptions options = fake_agents(1);
    options.files = folder / ".pool";
    LocalPool pool(options);
    EXPECT_TRUE(fs::exists(options.files / "scheduler"));
    if (!keep) continue;
    EXPECT_EQ(pool.keep_files(folder / "kept"), folder / "kept-2" / "scheduler");
  }
  EXPECT_FALSE(fs::exists(folder / ".pool"));
  EXPECT_TRUE(fs::exists(folder / "kept-2" / "scheduler"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 2);
  fs::remove_all(folder);
}

TEST(LocalPool, FilesThatCannotBeMovedStay) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "local_pool_files_stay";
  fs::remove_all(folder);
  fs::create_directories(folder);
  {
    LocalPoolOptions options = fake_agents(1);
    options.files = folder / ".pool";
    LocalPool pool(options);
    pool.keep_files(folder / "kept");
    ASSERT_TRUE(fs::is_directory(folder / "kept")) << "the name is taken from now on";
    fs::create_directory(folder / "kept" / "of somebody else");
  }
  EXPECT_TRUE(fs::exists(folder / ".pool" / "scheduler"));
  EXPECT_TRUE(fs::exists(folder / "kept" / "of somebody else"));
  fs::remove_all(folder);
}

TEST(LocalPool, WaitsLongerForAProcessThatEndsAgainAndAgain) {
  EXPECT_EQ(pause_before_restart(0), 0);
  EXPECT_EQ(pause_before_restart(1), 0) << "the first time it is started at once";
  EXPECT_EQ(pause_before_restart(2), 1);
  EXPECT_EQ(pause_before_restart(5), 8);
  EXPECT_EQ(pause_before_restart(10), 60);
}

// Names and paths from outside are in the lines.
TEST(LocalPool, SaysWhatAProcessLoggedLast) {
  LocalPoolOptions options = fake_agents(1);
  options.most_restarts = 1;
  LocalPool pool(options);
  const auto end = [&] {
    const LocalProcesses::Process agent = pool.processes()[1];
    ASSERT_EQ(::kill(agent.pid, SIGKILL), 0);
    wait_until([&] { return is_gone(agent.pid); });
    std::ofstream(agent.log, std::ios::app) << "first\nno room \x1b[31m" << std::string(1000, '\x01') << '\n';
  };
  end();
  testing::internal::CaptureStdout();  // where the log goes in tests
  wait_until([&, pid = pool.processes()[1].pid] {
    pool.check();
    return pool.processes()[1].pid != pid;
  });
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              testing::AllOf(HasSubstr("starts it again. Its log ends: no room \\x1b[31m\\x01"),
                             testing::Not(HasSubstr("first"))));
  end();
  const auto check = [&] { wait_until([&] { return pool.check(), false; }); };
  EXPECT_THAT(check, testing::ThrowsMessage<Error>(testing::AllOf(
                         HasSubstr("'node-1' was killed by signal 9:\n"),
                         HasSubstr("\nfirst\nno room \\x1b[31m"), testing::Not(HasSubstr("\x1b")))));
}

TEST(LocalPool, GivesUpOnAProcessThatEndsAgainAndAgain) {
  LocalPoolOptions options = fake_agents(1);
  options.most_restarts = 2;
  LocalPool pool(options);
  for (int i = 0; i < 3; ++i) {
    const pid_t pid = pool.processes()[1].pid;
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    const auto check_until_restarted = [&] {
      wait_until([&] {
        pool.check();
        return pool.processes()[1].pid != pid;
      });
    };
    if (i < 2)
      EXPECT_NO_THROW(check_until_restarted());
    else
      EXPECT_THAT(
          check_until_restarted,
          testing::ThrowsMessage<Error>(HasSubstr("the pool's process 'node-1' was killed by signal 9")));
  }
}

TEST(LocalPool, AStopEndsItsStart) {
  for (const int after : {1, 3}) {
    LocalPoolOptions options = fake_agents(2);
    int checks = 0;
    options.check = [&] {
      if (++checks == after) throw Interrupted("enough");
    };
    EXPECT_THROW(LocalPool pool(options), Interrupted);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no process is left";
  }
}

TEST(LocalPool, EndsItsProcesses) {
  std::vector<pid_t> pids;
  {
    LocalPool pool(fake_agents(2));
    PoolClient client(pool.scheduler());
    const uint64_t run = client.submit(submission(0));
    wait_until([&] { return step_of(client, run) > 0; });
    for (const auto& process : pool.processes()) pids.push_back(process.pid);
    EXPECT_EQ(pids.size(), 3u);
    EXPECT_NO_THROW(pool.check());
  }
  for (const pid_t pid : pids) EXPECT_TRUE(is_gone(pid));
}

// Anybody on this machine can connect to the port of the scheduler. Only peers with one of the keys of the
// pool are heard, and the keys are in a folder that only this user may enter.
TEST(LocalPool, IsClosedToOthers) {
  LocalPool pool(fake_agents(2));
  EXPECT_THAT([&] { PoolClient(pool.scheduler().endpoint).nodes(); },
              testing::ThrowsMessage<Error>(HasSubstr("key")));
  PoolClient client(pool.scheduler());
  const uint64_t run = client.submit(submission(0));
  wait_until([&] { return step_of(client, run) > 0; });
  const std::filesystem::path folder = pool.processes()[0].log.parent_path();
  constexpr auto kOthers = std::filesystem::perms::group_all | std::filesystem::perms::others_all;
  EXPECT_EQ(std::filesystem::status(folder).permissions() & kOthers, std::filesystem::perms::none);
  size_t keys = 0, sockets = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    sockets += file.is_socket();
    if (file.path().extension() != ".key") continue;
    ++keys;
    EXPECT_EQ(file.status().permissions() & kOthers, std::filesystem::perms::none) << file.path();
  }
  EXPECT_EQ(keys, 4u) << "of the scheduler, the user and each agent";
  EXPECT_EQ(sockets, 4u) << "of each agent, for steps and for snapshots: they are in the folder";
}

TEST(LocalPool, DiesWithItsParent) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto* pool = new LocalPool(fake_agents(2));  // never destroyed: the process is killed
    for (const auto& process : pool->processes())
      if (::write(pipe_ends[1], &process.pid, sizeof process.pid) != sizeof process.pid) ::_exit(1);
    ::pause();
    ::_exit(1);
  }
  std::vector<pid_t> pids(3);
  for (pid_t& pid : pids) ASSERT_EQ(::read(pipe_ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  for (const pid_t pid : pids) EXPECT_FALSE(is_gone(pid));
  ASSERT_EQ(::kill(parent, SIGKILL), 0);
  ::waitpid(parent, nullptr, 0);
  for (const pid_t pid : pids) wait_until([pid] { return is_gone(pid); });
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST(LocalPool, SaysWhatDidNotStart) {
  const auto failure = [](LocalPoolOptions options) {
    try {
      LocalPool pool(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("started");
  };
  EXPECT_THAT(failure({.nodes = 1, .threads = 1, .programs = "/nonexistent"}),
              HasSubstr("/nonexistent/modelet-scheduler"));
  EXPECT_THAT(failure({.nodes = 2, .threads = 1, .programs = BROKEN_PROGRAMS}), HasSubstr("'node-"));
}

// Runs a shell command. Returns its exit code and what it wrote.
std::pair<int, std::string> shell(const std::string& command) {
  std::string text;
  FILE* output = ::popen((command + " 2>&1").c_str(), "r");
  for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) text += static_cast<char>(c);
  return {WEXITSTATUS(::pclose(output)), text};
}

TEST(Programs, RefuseToListenWithoutKeys) {
  for (const char* address : {"tcp://0.0.0.0:*", "tcp://127.0.0.1:*"}) {
    const auto [code, text] = shell(std::string(FAKE_PROGRAMS "/modelet-scheduler --listen ") + address);
    EXPECT_EQ(code, 2);
    EXPECT_THAT(text, HasSubstr("--insecure"));
  }
}

TEST(Programs, NameTheNearestKeyOfAConfiguration) {
  const std::string path = testing::TempDir() + "/scheduler.toml";
  std::ofstream(path) << "listen = \"tcp://127.0.0.1:*\"\ndead_after_secunds = 3\n";
  const auto [code, text] = shell(FAKE_PROGRAMS "/modelet-scheduler --config " + path);
  EXPECT_EQ(code, 2);
  EXPECT_THAT(text, HasSubstr(path + ":2"));
  EXPECT_THAT(text, HasSubstr("did you mean 'dead_after_seconds'?"));
}

}  // namespace
}  // namespace modelet::cli
