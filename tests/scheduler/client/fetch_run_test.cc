// What a pool keeps of a run is copied into a folder: each checkpoint completely or not at all, and nothing
// twice.
#include "scheduler/client/fetch_run.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "comm/content/snapshot.h"
#include "comm/content/transfer/data_server.h"
#include "comm/content/transfer/transfer.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/client/run_on_pool.h"
#include "scheduler/client/send_data.h"
#include "tests/error_of.h"
#include "tests/scheduler/client/fake_scheduler.h"
#include "tests/scheduler/pools.h"
#include "tests/shard/modelet/sample_checkpoint.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;
namespace msg = comm::control;
using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The pool has two checkpoints of a run that no node works on any more.
class FetchRunTest : public testing::Test {
 protected:
  FetchRunTest() : folder(fs::path(testing::TempDir()) / "fetch_run") {
    fs::remove_all(folder);
    store = std::make_unique<comm::DataServer>(comm::DataServerOptions{.store = folder / "store"},
                                               "tcp://127.0.0.1:*", std::nullopt);
    for (const uint64_t step : {10, 20})
      kept.push_back(send_checkpoint(
          data_address(),
          shard::Checkpoint::open(shard::write_sample_checkpoint(folder / "theirs" / "checkpoints", step, 9)),
          nullptr));
    scheduler = std::make_unique<test::FakeScheduler>(
        "tcp://127.0.0.1:*", [this](const auto& message) { return answer(message); });
  }
  ~FetchRunTest() override {
    scheduler.reset();
    fs::remove_all(folder);
  }

  msg::SchedulerAddress data_address() const { return {"tcp://127.0.0.1:" + std::to_string(store->port())}; }

  std::vector<msg::FromSchedulerMessage> answer(const msg::ToSchedulerMessage& message) const {
    std::vector<msg::FromSchedulerMessage> answers;
    if (std::holds_alternative<msg::FindDataPortT>(message))
      answers.emplace_back(msg::DataPortT{{}, store->port()});
    if (std::holds_alternative<msg::FindRunFilesT>(message)) {
      msg::RunFilesT files;
      const std::lock_guard lock(mutex);
      for (const comm::Snapshot& each : kept) files.snapshots.push_back(msg::to_table(each));
      files.experiment = experiment;
      answers.emplace_back(std::move(files));
    }
    msg::RunStatusT status;
    status.run = 3;
    status.state = msg::RunState::Finished;
    if (const auto* submit = std::get_if<msg::SubmitT>(&message))
      answers.emplace_back(msg::AcceptedT{{}, 3, submit->token});
    const std::lock_guard lock(mutex);
    const std::vector<std::string> events{
        R"({"event":"started","time":")" + began + R"("})",
        R"({"event":"checkpoint","step":20,"path":"/agent/x/step-0000000020"})",
        R"({"event":"finished","checkpoint":"/agent/x/step-0000000020"})"};
    if (const auto* asked = std::get_if<msg::FindRunLogT>(&message)) {
      msg::RunLogT log{{}, 3, "", 3, true};
      if (asked->offset == 0)
        for (const std::string& text : events) log.text += text + '\n';
      answers.emplace_back(std::move(log));
    }
    if (std::holds_alternative<msg::WatchT>(message)) {
      for (const std::string& text : events) answers.emplace_back(msg::RunEventT{{}, 3, text});
      answers.emplace_back(std::move(status));
    }
    return answers;
  }

  std::vector<fs::path> fetch(const FetchOptions& options = {}) {
    return fetch_checkpoints(scheduler->endpoint(), 3, out, options);
  }
  static std::vector<std::string> names_in(const fs::path& where) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(where)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_same(uint64_t step) const {
    const fs::path name = fs::path("checkpoints") / ("step-00000000" + std::to_string(step));
    ASSERT_EQ(names_in(out / name), names_in(folder / "theirs" / name));
    for (const std::string& file : names_in(out / name))
      EXPECT_EQ(read_text_file(out / name / file), read_text_file(folder / "theirs" / name / file)) << file;
  }

  const fs::path folder, out = folder / "mine";
  std::ostringstream ignored;
  std::unique_ptr<comm::DataServer> store;
  mutable std::mutex mutex;          // the scheduler's thread reads
  std::vector<comm::Snapshot> kept;  // as the scheduler lists them
  std::string experiment = "# as it was submitted\n[train]\nepochs = 3\n", began = "08:00";
  std::unique_ptr<test::FakeScheduler> scheduler;
};

TEST_F(FetchRunTest, BringsWhatIsMissing) {
  EXPECT_THAT(fetch(), ElementsAre(out / "checkpoints/step-0000000020", out / "checkpoints/step-0000000010"));
  expect_same(10);
  expect_same(20);
  EXPECT_THAT(names_in(out), ElementsAre("checkpoints")) << "nothing is left of the way";
  EXPECT_EQ(shard::find_checkpoint(out), out / "checkpoints/step-0000000020");

  std::vector<nlohmann::json> told;
  fs::remove_all(out / "checkpoints/step-0000000010");
  fetch({.report = [&](const nlohmann::json& event) { told.push_back(event); }});
  expect_same(10);
  for (const auto& event : told) EXPECT_EQ(event.at("data"), "step-0000000010");
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().at("bytes"), told.back().at("total_bytes"));
}

TEST_F(FetchRunTest, KeepsTheNewestAsATrainerDoes) {
  std::vector<fs::path> arrived;
  const FetchOptions options{.newest = 1, .arrived = [&](const fs::path& path) { arrived.push_back(path); }};
  shard::write_sample_checkpoint(out / "checkpoints", 5, 9);
  EXPECT_THAT(fetch(options), ElementsAre(out / "checkpoints/step-0000000020"));
  EXPECT_THAT(names_in(out / "checkpoints"), ElementsAre("step-0000000020"));
  fetch(options);
  EXPECT_THAT(arrived, ElementsAre(out / "checkpoints/step-0000000020", out / "checkpoints/step-0000000020"))
      << "what is there already is told as well";
}

// Files of a store on this machine are linked, with the mode that files of this process get.
TEST_F(FetchRunTest, LinksFilesOfAStoreOnThisMachine) {
  for (const auto& file : fs::directory_iterator(folder / "store"))
    fs::permissions(file, fs::perms::owner_read);
  fetch({.store = folder / "store"});
  expect_same(10);
  expect_same(20);
  std::ofstream(folder / "new") << "x";
  for (const auto& file : fs::directory_iterator(out / "checkpoints/step-0000000020")) {
    EXPECT_GE(file.hard_link_count(), 2u) << file.path();
    EXPECT_EQ(file.status().permissions(), fs::status(folder / "new").permissions()) << file.path();
  }
}

// The checkpoint of the best weights may have left the pool as a checkpoint long ago.
TEST_F(FetchRunTest, TheBestWeightsComeWithTheCheckpointThatNamesThem) {
  const fs::path theirs = folder / "validated" / "checkpoints";
  for (const uint64_t step : {10, 20}) {
    shard::CheckpointIndex index = shard::sample_index(step);
    index.experiment.data.validation = 0.25;
    index.best_step = 10;
    const shard::CheckpointWriter writer(theirs, step);
    for (const ModeletSpec& spec : partition_model(index.experiment, index.shape))
      index.modelets.push_back(shard::write_sample_modelet(writer, spec, step));
    writer.commit(std::move(index), 9);
  }
  const comm::Snapshot last =
      send_checkpoint(data_address(), shard::Checkpoint::open(theirs / "step-0000000020"), nullptr);
  {
    const std::lock_guard lock(mutex);
    kept = {last};
  }
  EXPECT_THAT(fetch({.newest = 1}), ElementsAre(out / "checkpoints/step-0000000020"));
  EXPECT_EQ(shard::find_model(out), out / "checkpoints/step-0000000010");
  for (const char* name : {"step-0000000010", "step-0000000020"})
    for (const std::string& file : names_in(theirs / name))
      EXPECT_EQ(read_text_file(out / "checkpoints" / name / file), read_text_file(theirs / name / file))
          << file;
}

TEST_F(FetchRunTest, AFolderHasOneUser) {
  {
    const RunFolder mine(out, {});
    EXPECT_THAT(error_of([&] { RunFolder other(out, {}); }),
                HasSubstr("another run trains into this folder"));
    EXPECT_THAT(error_of([&] { RunFolder other(out); }), HasSubstr("a run trains into this folder"));
  }
  EXPECT_FALSE(fs::exists(out)) << "nothing came into it";
  fetch();
  EXPECT_THAT(error_of([&] { RunFolder other(out, {}); }), HasSubstr("--resume"));
  { const RunFolder again(out); }
  EXPECT_TRUE(fs::exists(out / "checkpoints"));
}

TEST_F(FetchRunTest, LeavesOutWhatTheStoreDoesNotHave) {
  {
    const std::lock_guard lock(mutex);
    kept[0].files[0].holders = {"alpha"};
    kept[1].keep = false;
  }
  EXPECT_THAT(fetch(), IsEmpty());
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(FetchRunTest, OlderCheckpointsMayBeGone) {
  comm::ContentStore stored(folder / "store", uint64_t{1} << 30, "");
  const auto remove = [&](const comm::Snapshot& snapshot) {
    const comm::ContentId id = snapshot.files.back().content;
    store->close({comm::to_text(id)});
    test::wait_until([&] { return stored.remove(id); });
  };
  remove(kept[0]);
  EXPECT_THAT(fetch(), ElementsAre(out / "checkpoints" / "step-0000000020"));
  expect_same(20);
  EXPECT_THAT(names_in(out / "checkpoints"), ElementsAre("step-0000000020"));
  fs::remove_all(out);
  remove(kept[1]);
  EXPECT_THAT(error_of([&] { fetch(); }), HasSubstr("has no data")) << "nothing is newer";
}

TEST_F(FetchRunTest, GoesOnAfterAnAttemptThatWasCutOff) {
  EXPECT_THROW(fetch({.check =
                          [&] {
                            if (fs::exists(out / ".fetching/step-0000000020")) throw Interrupted("enough");
                          }}),
               Interrupted);
  EXPECT_FALSE(fs::exists(out / "checkpoints/step-0000000020"));
  EXPECT_TRUE(fs::exists(out / ".fetching"));
  fetch();
  expect_same(20);
  EXPECT_FALSE(fs::exists(out / ".fetching"));
}

TEST_F(FetchRunTest, NamesAStoreThatIsNotThere) {
  const comm::Snapshot of_others{
      .step = 30, .keep = true, .files = {{.name = "index.json", .bytes = 3, .holders = {""}}}};
  {
    const std::lock_guard lock(mutex);
    kept = {of_others};
  }
  EXPECT_THAT(error_of([&] { fetch(); }), HasSubstr("refuses data"));
}

TEST_F(FetchRunTest, RecordsExperimentAndEvents) {
  const RunFolder mine(out);  // without a checkpoint
  for (int i = 0; i < 2; ++i) fetch_record(scheduler->endpoint(), 3, out);
  EXPECT_EQ(read_text_file(out / "experiment.toml"), experiment);
  const std::string log = read_text_file(out / "log.jsonl");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << log;
  EXPECT_THAT(log, HasSubstr(R"("path":")" + (out / "checkpoints/step-0000000020").string()));
}

TEST_F(FetchRunTest, AFolderOfAnotherRunStaysAsItIs) {
  const auto refusal = [&] { return error_of([&] { fetch_record(scheduler->endpoint(), 3, out); }); };
  fs::create_directories(out);
  EXPECT_EQ(refusal(), "no error");
  const std::string log = read_text_file(out / "log.jsonl"), first = experiment;
  const auto set = [this](std::string& text, const std::string& value) {
    const std::lock_guard lock(mutex);
    text = value;
  };
  set(began, "09:00");  // the same experiment again
  EXPECT_THAT(refusal(), HasSubstr("log.jsonl is not that of run 3"));
  set(began, "08:00");
  set(experiment, "[train]\nepochs = 4\n");
  EXPECT_THAT(refusal(), HasSubstr("experiment.toml is not that of run 3"));
  EXPECT_EQ(read_text_file(out / "experiment.toml"), first);
  EXPECT_EQ(read_text_file(out / "log.jsonl"), log);

  fs::remove(out / "experiment.toml");
  EXPECT_EQ(refusal(), "no error") << "nothing says that this is another run's";
  fs::remove(out / "experiment.toml");
  shard::write_sample_checkpoint(out / "checkpoints", 5, 9);
  EXPECT_THAT(refusal(), HasSubstr("step-0000000005 may be another run's"));
}

// `modelet submit --watch`: the last events name checkpoints that are in the folder by then.
TEST_F(FetchRunTest, ARunThatIsWatchedBringsItsFiles) {
  std::ostringstream machines;
  Reporter reporter(true, machines, ignored, {});
  const std::atomic<bool> stop{false};
  run_on_pool(scheduler->endpoint(), {.submission = {}, .out = out}, reporter, stop);
  expect_same(20);
  std::istringstream lines(machines.str());
  std::vector<std::string> seen;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    seen.push_back(event.value("event", "") + " " + event.value("path", "") + event.value("checkpoint", ""));
  }
  const std::string path = (out / "checkpoints/step-0000000020").string();
  EXPECT_THAT(seen, ElementsAre("submitted ", "started ", "checkpoint " + path, "finished " + path));
}

// `modelet train --nodes N`: the pool ends with the process, which must not take the only copy with it.
TEST_F(FetchRunTest, AStoreStaysIfItsFilesCannotBePlaced) {
  fs::create_directories(out / "checkpoints");
  std::ofstream(out / ".fetching") << "in the way";
  std::ostringstream machines;
  Reporter reporter(true, machines, ignored, {});
  const RunOnPool run{.submission = {},
                      .out = out,
                      .own_store = folder / "store",
                      .keep_store = [] { return "/kept/scheduler"; },
                      .patience = 2};
  const std::atomic<bool> stop{false};
  EXPECT_THAT(error_of([&] { run_on_pool(scheduler->endpoint(), run, reporter, stop); }),
              HasSubstr("modelet-scheduler --insecure --state /kept/scheduler"));
  EXPECT_THAT(machines.str(), HasSubstr(R"("event":"failed")"));
}

}  // namespace
}  // namespace modelet::cli
