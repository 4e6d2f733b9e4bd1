// What was written can be read again, however the process ended. What cannot be used is refused with a
// helpful message.
#include "scheduler/ledger/ledger.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/error_of.h"
#include "tests/processes.h"

namespace modelet::scheduler {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

class LedgerTest : public testing::Test {
 protected:
  LedgerTest() {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  ~LedgerTest() override { fs::remove_all(folder); }

  const fs::path folder = fs::path(testing::TempDir()) / "ledger";
  const fs::path file = folder / "ledger.sqlite";
};

// The whole ledger as one text.
std::string text_of(const Records& records) {
  std::string text;
  if (records.pool)
    text += "pool " + std::to_string(records.pool->id) + " " + std::to_string(records.pool->next_run) + ", " +
            std::to_string(records.pool->losses) + " in " + std::to_string(records.pool->node_seconds) + " s\n";
  for (const RunRecord& run : records.runs)
    text += "run " + std::to_string(run.id) + (run.ended ? " ended " : " ") + run.text + "\n";
  for (const RunEventRecord& event : records.events)
    text += "event " + std::to_string(event.run) + " " + std::to_string(event.number) + " " + event.time +
            " " + event.text + "\n";
  for (const DrainRecord& drain : records.drains) text += "drained " + drain.name + "\n";
  for (const NodeRecord& node : records.nodes)
    text += "node " + node.name + " " + std::to_string(node.lost_at) + " " + node.text + "\n";
  for (const NodeNameRecord& name : records.names) text += "name " + name.name + " " + name.key + "\n";
  return text;
}

uint64_t bytes_of_log(Ledger& ledger, uint64_t run, const std::string& node) {
  uint64_t bytes = 0, next = 0;
  for (LogPage page; !(page = ledger.read_log(run, node, next, 1 << 20)).text.empty(); next = page.next)
    bytes += page.text.size();
  return bytes;
}

void execute(const fs::path& file, const char* sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  sqlite3_close(database);
}

TEST_F(LedgerTest, KeepsWhatWasWritten) {
  const std::string odd("a\0'\"\n\xff", 6);
  {
    Ledger ledger(file);
    EXPECT_EQ(text_of(ledger.read()), "");
    ledger.write({.pool = PoolRecord{.id = UINT64_MAX - 4, .next_run = 2},
                  .runs = {{.id = 1, .text = "first"}},
                  .events = {{1, 1, "10:00", "begins"}},
                  .names = {{"beta", "key b"}}});
    ledger.write(
        {.pool = PoolRecord{.id = UINT64_MAX - 4, .next_run = 4, .node_seconds = 5000, .losses = 6},
         .runs = {{.id = 3, .text = odd}, {.id = 2, .text = ""}, {.id = 1, .ended = true, .text = "over"}},
         .events = {{3, 1, "12:00", "x"}, {1, 2, "11:00", "ends"}},
         .names = {{"alpha", "key a"}, {"beta", "key c"}}});
    ledger.write({});
  }
  const std::string expected =
      "pool 18446744073709551611 4, 6 in 5000 s\nrun 1 ended over\nrun 2 \nrun 3 " + odd +
      "\nevent 1 1 10:00 begins\nevent 1 2 11:00 ends\nevent 3 1 12:00 x\nname alpha key a\nname beta key c\n";
  EXPECT_EQ(text_of(Ledger(file).read()), expected);
}

TEST_F(LedgerTest, ForgetsARunWithItsEvents) {
  Ledger ledger(file);
  ledger.write({.runs = {{.id = 1, .text = "a"}, {.id = 2, .text = "b"}},
                .events = {{1, 1, "t", "x"}, {2, 1, "t", "y"}}});
  ledger.write({.forgotten_runs = {1, 7}});
  EXPECT_EQ(text_of(ledger.read()), "run 2 b\nevent 2 1 t y\n");
}

TEST_F(LedgerTest, KeepsTheNewestEventsOfEachRun) {
  Ledger ledger(file);
  Records records{.runs = {{.id = 1, .text = "a"}, {.id = 2, .text = "b"}},
                  .events = {{2, 1, "t", "of another run"}}};
  for (uint64_t number = 1; number <= kMostLedgerEvents + 3; ++number)
    records.events.push_back({1, number, "t", "x"});
  ledger.write(records);
  const Records kept = ledger.read();
  ASSERT_EQ(kept.events.size(), kMostRestoredEvents + 1) << "the newest of them";
  EXPECT_EQ(kept.events.front().number, kMostLedgerEvents + 4 - kMostRestoredEvents);
  EXPECT_EQ(kept.events[kMostRestoredEvents - 1].number, kMostLedgerEvents + 3);
  EXPECT_EQ(kept.events.back().text, "of another run");
  ledger.write({.runs = {{.id = 1, .ended = true, .text = "a"}}});
  EXPECT_EQ(ledger.read().events.size(), kMostRestoredOfEnded + 1);
  uint64_t lines = 0, next = 0;
  for (LogPage page; !(page = ledger.read_log(1, "", next, 1000)).text.empty(); next = page.next) {
    if (next == 0) {
      EXPECT_EQ(page.next, 503u) << "the first 500 that are left";
    }
    lines += static_cast<uint64_t>(std::ranges::count(page.text, '\n'));
  }
  EXPECT_EQ(lines, kMostLedgerEvents);
  EXPECT_EQ(next, kMostLedgerEvents + 3);
}

// The size of the model and the data is in this event alone, and `modelet report` needs it.
TEST_F(LedgerTest, KeepsTheFirstStart) {
  Ledger ledger(file);
  const std::string start = R"({"event":"started","nodes":2})", later = R"({"event":"started","nodes":1})";
  Records records;
  for (uint64_t number = 1; number <= kMostLedgerEvents + 9; ++number)
    records.events.push_back({1, number, "t", number == 3 ? start : number == 5 ? later : "x"});
  records.events.push_back({2, kMostLedgerEvents + 1, "t", "of another run"});
  ledger.write(records);
  for (uint64_t number = kMostLedgerEvents + 10; number <= kMostLedgerEvents + 12; ++number)
    ledger.write({.events = {{1, number, "t", later}}});
  std::string log;
  uint64_t next = 0;
  for (LogPage page; !(page = ledger.read_log(1, "", next, 100000)).text.empty(); next = page.next)
    log += page.text;
  EXPECT_EQ(log.substr(0, start.size() + 3), start + "\nx\n");
  EXPECT_EQ(std::ranges::count(log, '\n'), kMostLedgerEvents + 1);
  EXPECT_EQ(next, kMostLedgerEvents + 12);
}

TEST_F(LedgerTest, KeepsTheNewestOfWhatANodeHasLogged) {
  Ledger ledger(file);
  const std::string line(1000, 'x');
  for (int i = 0; i < 300; ++i)
    ledger.write({.logs = {{1, "a", std::to_string(i) + line + "\n"}, {1, "b", "b\n"}}});
  ledger.write({.logs = {{2, "a", "of another run\n"}}});
  std::string all;
  uint64_t next = 0;
  for (LogPage page; !(page = ledger.read_log(1, "a", next, 5000)).text.empty(); next = page.next)
    all += page.text;
  EXPECT_LE(all.size(), kMostNodeLogBytes);
  EXPECT_GT(all.size(), kMostNodeLogBytes / 8 * 7 - 2 * line.size());
  EXPECT_TRUE(all.ends_with("299" + line + "\n"));
  EXPECT_THAT(ledger.nodes_with_log(1), testing::ElementsAre("a", "b"));
  ledger.write({.forgotten_runs = {1}});
  EXPECT_EQ(ledger.read_log(1, "a", 0, 5000).text, "");
  EXPECT_EQ(ledger.read_log(2, "a", 0, 5000).text, "of another run\n");
}

TEST_F(LedgerTest, AllNodesOfARunTogetherHaveSoManyBytesOfLogs) {
  Ledger ledger(file);
  const std::string line(kMostNodeLogBytes / 8, 'x');
  const size_t nodes = 4 * kMostLogBytesOfRun / kMostNodeLogBytes;
  Records records;
  for (int i = 0; i < 4; ++i)
    for (size_t node = 0; node < nodes; ++node)
      records.logs.push_back({1, "node-" + std::to_string(node), line});
  ledger.write(records);
  uint64_t bytes = 0;
  for (const std::string& node : ledger.nodes_with_log(1)) bytes += bytes_of_log(ledger, 1, node);
  EXPECT_LE(bytes, kMostLogBytesOfRun);
}

// Texts of agents are escaped, and the events of one run must not fill the disk.
TEST_F(LedgerTest, EventsOfARunHaveSoManyBytes) {
  Ledger ledger(file);
  const std::string start = R"({"event":"started"})";
  ledger.write({.runs = {{.id = 1, .text = "r"}}, .events = {{1, 1, "t", start}}});
  const std::string large(64 << 10, 'x');
  Records records;
  const uint64_t count = 2 * kMostEventBytes / large.size();
  for (uint64_t number = 2; number < count; ++number) records.events.push_back({1, number, "t", large});
  ledger.write(records);
  ledger.write({.events = {{1, count, "t", "the newest"}}});
  const auto log = [&] {
    std::string text;
    uint64_t next = 0;
    for (LogPage page; !(page = ledger.read_log(1, "", next, 1 << 20)).text.empty(); next = page.next)
      text += page.text;
    return text;
  };
  EXPECT_LE(log().size(), kMostEventBytes);
  EXPECT_GE(log().size(), kMostEventBytes / 2);
  EXPECT_TRUE(log().starts_with(start + "\n"));
  EXPECT_TRUE(log().ends_with("the newest\n"));
  ledger.write({.shortened_logs = {1}});
  EXPECT_LE(log().size(), kMostShortBytes + start.size());
  EXPECT_TRUE(log().starts_with(start + "\n"));
  EXPECT_TRUE(log().ends_with("the newest\n"));
}

// An entry that is written again counts once.
TEST_F(LedgerTest, KnowsHowManyBytesThereAre) {
  Ledger ledger(file);
  const std::string large(kMostEventBytes / 4, 'x');
  for (int i = 0; i < 20; ++i) ledger.write({.events = {{1, 1, "t", large}, {1, 2, "t", "end"}}});
  EXPECT_EQ(ledger.read_log(1, "", 0, SIZE_MAX).text, large + "\nend\n");
}

// Another release, or another limit, has written more than there is memory for.
TEST_F(LedgerTest, OfAnySizeIsRead) {
  Ledger ledger(file);
  const std::string large(100'000, 'x');
  Records records;
  for (uint64_t run = 1; run <= 40; ++run) {
    const bool works = run == 3 || run == 7;
    records.runs.push_back({.id = run, .ended = !works, .text = large, .submission = large});
    for (uint64_t number = 1; number <= 30; ++number) records.events.push_back({run, number, "t", large});
  }
  ledger.write(records);
  const Records read = ledger.read(2'000'000);
  uint64_t bytes = 0;
  for (const RunRecord& run : read.runs) bytes += run.text.size() + run.submission.size();
  for (const RunEventRecord& event : read.events) bytes += event.text.size();
  EXPECT_LE(bytes, 2 * 2'000'000u);
  for (const uint64_t works : {3, 7}) {
    EXPECT_TRUE(std::ranges::count(read.runs, works, &RunRecord::id)) << "what works is never left out";
    EXPECT_TRUE(std::ranges::any_of(
        read.events, [&](const RunEventRecord& event) { return event.run == works && event.number == 30; }));
  }
  EXPECT_EQ(read.runs.back().id, 40u) << "of those that have ended the newest are read";
  EXPECT_EQ(read.unread_runs + read.runs.size(), 40u);
  EXPECT_GT(read.unread_runs, 0u);
  EXPECT_EQ(ledger.read().runs.size(), 40u) << "they are still there";
}

// Nobody can see them, and they would become more with each start.
TEST_F(LedgerTest, OldRunsThatAreNotReadAreRemoved) {
  Ledger ledger(file);
  Records records;
  for (uint64_t run = 1; run <= kMostUnreadRuns + 10; ++run) {
    records.runs.push_back({.id = run, .ended = run != 3, .text = std::string(100, 'x')});
    records.events.push_back({run, 1, "t", "an event"});
  }
  ledger.write(records);
  EXPECT_EQ(ledger.read().runs.size(), kMostUnreadRuns + 10) << "all are read";
  EXPECT_EQ(ledger.read(1000).unread_runs, kMostUnreadRuns - ledger.read(1000).runs.size());
  const Records left = ledger.read();
  EXPECT_EQ(left.runs.size(), kMostUnreadRuns);
  EXPECT_EQ(left.runs.front().id, 3u) << "it has not ended";
  EXPECT_EQ(left.runs.at(1).id, 12u);
  EXPECT_EQ(left.runs.back().id, kMostUnreadRuns + 10);
  EXPECT_EQ(ledger.read_log(2, "", 0, 1000).text, "");
}

TEST_F(LedgerTest, ASubmissionIsWrittenOnce) {
  Ledger ledger(file);
  ledger.write({.runs = {{.id = 1, .text = "a", .submission = "long"}}});
  ledger.write({.runs = {{.id = 1, .text = "b"}}});
  EXPECT_EQ(ledger.read().runs.at(0).submission, "long");
  ledger.write({.forgotten_runs = {1}});
  ledger.write({.runs = {{.id = 1, .text = "c"}}});
  EXPECT_EQ(ledger.read().runs.at(0).submission, "");
}

TEST_F(LedgerTest, KnowsWhoIsDrained) {
  {
    Ledger ledger(file);
    ledger.write({.drains = {{"a", true}, {"b", true}}});
    ledger.write({.drains = {{"a", false}}});
  }
  EXPECT_EQ(text_of(Ledger(file).read()), "drained b\n");
}

TEST_F(LedgerTest, KnowsWhichNodesAreThereOrLost) {
  {
    Ledger ledger(file);
    ledger.write({.nodes = {{"a", 0, "{}"}, {"b", 0, "{}"}, {"c", 0, "{}"}}});
    ledger.write({.nodes = {{"a", 17, "{'why'}"}, {"c"}, {"never was"}}});
  }
  EXPECT_EQ(text_of(Ledger(file).read()), "node a 17 {'why'}\nnode b 0 {}\n");
}

constexpr const char* kAsOfVersion2 =
    "DROP TRIGGER event_added; DROP TRIGGER event_removed; DROP TRIGGER log_added; DROP TRIGGER log_removed; "
    "DROP TABLE sizes; DROP TABLE submissions; DROP TABLE nodes; "
    "ALTER TABLE pool DROP COLUMN node_seconds; ALTER TABLE pool DROP COLUMN losses; "
    "INSERT INTO pool VALUES (1, 7, 3); PRAGMA user_version = 2";

TEST_F(LedgerTest, ReadsTheSecondVersion) {
  { Ledger ledger(file); }
  execute(file, kAsOfVersion2);
  EXPECT_EQ(text_of(Ledger(file).read()), "pool 7 3, 0 in 0 s\n");
  EXPECT_EQ(text_of(Ledger(file).read()), "pool 7 3, 0 in 0 s\n") << "made anew";
}

// The first version has no logs, no drained nodes and no numbers of agents.
TEST_F(LedgerTest, ReadsTheFirstVersion) {
  { Ledger ledger(file); }
  execute(file, kAsOfVersion2);
  execute(
      file,
      "DROP TABLE logs; DROP TABLE drained; DROP TABLE events; CREATE TABLE events (run INTEGER NOT NULL, number "
      "INTEGER NOT NULL, time TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID; "
      "INSERT INTO events VALUES (1, 1, 't', 'old'); PRAGMA user_version = 1");
  Ledger ledger(file);
  ledger.write({.runs = {{.id = 1, .text = "r"}}, .events = {{1, 2, "t", "new", 7, 9}}, .logs = {{1, "a", "line\n"}}});
  EXPECT_EQ(text_of(ledger.read()), "pool 7 3, 0 in 0 s\nrun 1 r\nevent 1 1 t old\nevent 1 2 t new\n");
  EXPECT_EQ(ledger.read().events.back().agent_number, 9u);
}

TEST_F(LedgerTest, AFailedWriteChangesNothing) {
  {
    Ledger ledger(file);
    ledger.write({.runs = {{.id = 1, .text = "before"}}});
  }
  execute(file, "CREATE TRIGGER refuse BEFORE INSERT ON names BEGIN SELECT RAISE(ABORT, 'no names'); END");
  Ledger ledger(file);
  EXPECT_THAT(error_of([&] {
                ledger.write({.runs = {{.id = 1, .text = "after"}}, .names = {{"a", "b"}}});
              }),
              HasSubstr("no names"));
  EXPECT_EQ(text_of(ledger.read()), "run 1 before\n");
  ledger.write({.runs = {{.id = 1, .text = "later"}}});
  EXPECT_EQ(text_of(ledger.read()), "run 1 later\n");
}

// A process is killed between two writes or within one. What it has reported as written is there, and of each
// write either all or nothing.
TEST_F(LedgerTest, OutlivesAKilledProcess) {
  const test::Shared<std::atomic<uint64_t>> written;
  for (const uint64_t rounds : {0, 1, 3, 20, 60}) {
    const uint64_t before = *written;
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        Ledger ledger(file);
        for (uint64_t i = *written + 1;; ++i) {
          ledger.write({.pool = PoolRecord{.id = 9, .next_run = i + 1},
                        .runs = {{.id = i, .text = std::string(5000, 'x')}},
                        .events = {{i, 1, "t", "a"}, {i, 2, "t", "b"}}});
          *written = i;
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      ::_exit(1);
    }
    int status = 0;
    while (*written < before + rounds && ::waitpid(child, &status, WNOHANG) == 0) ::sched_yield();
    ::kill(child, SIGKILL);
    if (status == 0) ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer has ended by itself";

    const Records records = Ledger(file).read();
    const uint64_t last = records.runs.size();
    EXPECT_GE(last, *written);
    EXPECT_LE(last, *written + 1);
    EXPECT_EQ(records.pool ? records.pool->next_run : 1, last + 1);
    EXPECT_EQ(records.events.size(), 2 * last);
    *written = last;
  }
}

TEST_F(LedgerTest, HasOneUserAtATime) {
  const auto in_another_process = [&] {
    return test::run_processes(1,
                               [&](int) {
                                 test::require(error_of([&] {
                                                 Ledger second(file);
                                               }).find("another process uses it") != std::string::npos,
                                               "a second ledger was not refused");
                               })
        .front();
  };
  Ledger fresh(file);
  EXPECT_EQ(in_another_process(), 0) << "just made";
  EXPECT_THAT(error_of([&] { Ledger second(file); }),
              HasSubstr(file.string() + ": another process uses it: end that"));
  fresh.write({.runs = {{.id = 1, .text = "a"}}});
  EXPECT_EQ(in_another_process(), 0) << "written to";
}

TEST_F(LedgerTest, HasOneUserAtATimeAlsoWhenItWasThereBefore) {
  { Ledger ledger(file); }
  Ledger again(file);
  EXPECT_THAT(error_of([&] { Ledger second(file); }), HasSubstr("another process uses it"));
}

TEST_F(LedgerTest, RefusesWhatIsDamaged) {
  std::ofstream(file) << std::string(20000, 'x');
  EXPECT_THAT(error_of([&] { Ledger ledger(file); }),
              HasSubstr(file.string() + ": is damaged (file is not a database)"));
  fs::remove(file);
  {
    Ledger ledger(file);
    for (uint64_t i = 1; i < 50; ++i) ledger.write({.runs = {{.id = i, .text = std::string(3000, 'x')}}});
  }
  const auto size = fs::file_size(file);
  std::fstream(file, std::ios::in | std::ios::out)
      .seekp(4096)
      .write(std::string(size - 4096, '\x7f').data(), static_cast<std::streamsize>(size - 4096));
  EXPECT_THAT(error_of([&] { Ledger ledger(file); }), HasSubstr("is damaged"));
  fs::resize_file(file, 5000);
  EXPECT_THAT(error_of([&] { Ledger ledger(file); }), HasSubstr("put back a copy of it, or move it away"));
}

// The ledger is too large to be checked as a whole.
TEST_F(LedgerTest, RefusesWhatIsDamagedWhenItIsRead) {
  {
    Ledger ledger(file);
    for (uint64_t i = 1; i < 50; ++i) ledger.write({.runs = {{.id = i, .text = std::string(400000, 'x')}}});
  }
  const auto size = fs::file_size(file);
  ASSERT_GT(size, 16u << 20);
  std::fstream(file, std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(size / 2))
      .write(std::string(size / 4, '\x7f').data(), static_cast<std::streamsize>(size / 4));
  Ledger ledger(file);
  EXPECT_THAT(error_of([&] { ledger.read(); }), HasSubstr("is damaged"));
}

TEST_F(LedgerTest, RefusesWhatOthersWrote) {
  { Ledger ledger(file); }
  execute(file, "PRAGMA user_version = 6");
  EXPECT_THAT(error_of([&] { Ledger ledger(file); }),
              HasSubstr("was written by a newer release (version 6, this one reads 5)"));
  const fs::path other = folder / "other.sqlite";
  execute(other, "CREATE TABLE things (name TEXT)");
  EXPECT_THAT(error_of([&] { Ledger ledger(other); }), HasSubstr("is a database of another program"));
}

TEST_F(LedgerTest, SaysWhatCannotBeWritten) {
  EXPECT_THAT(
      error_of([&] { Ledger ledger(folder / "missing" / "ledger.sqlite"); }),
      HasSubstr(
          "ledger.sqlite: cannot be written (unable to open database file: No such file or directory)"));
  EXPECT_THAT(error_of([&] { Ledger ledger(folder); }), HasSubstr("cannot be written"));
}

// Uses file systems that a child process mounts in a namespace of its own.
TEST_F(LedgerTest, SaysThatTheDiskIsFullOrReadOnly) {
  const test::Shared<std::atomic<bool>> mounted;
  const int end =
      test::run_processes(1, [&](int) {
        if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return;
        if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("none", folder.c_str(), "tmpfs", 0, "size=256k") != 0)
          return;
        *mounted = true;
        {
          Ledger ledger(file);
          ledger.write({.runs = {{.id = 1, .text = "small"}}});
          const std::string why =
              error_of([&] { ledger.write({.runs = {{.id = 2, .text = std::string(1 << 20, 'x')}}}); });
          test::require(why.find("its disk is full") != std::string::npos, "full: " + why);
          test::require(text_of(ledger.read()) == "run 1 small\n", "a write that failed left something");
        }
        ::mount("none", folder.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr);
        const std::string why = error_of([&] { Ledger ledger(file); });
        test::require(why.find("cannot be written") != std::string::npos, "read-only: " + why);
      }).front();
  EXPECT_EQ(end, 0);
  if (!*mounted) GTEST_SKIP() << "may not mount here";
}

}  // namespace
}  // namespace modelet::scheduler
