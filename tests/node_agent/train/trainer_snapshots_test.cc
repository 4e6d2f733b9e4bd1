// Trainer with a private folder for each rank: snapshots, and runs that continue from one.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "base/system/file.h"
#include "base/system/log.h"
#include "node_agent/train/progress/snapshot_budget.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

// Name of a file -> its content, from all ranks.
using Files = std::map<std::string, std::string>;

struct PrivateRun {
  std::vector<json> events;
  std::vector<std::map<uint64_t, WrittenSnapshot>> written;  // [ranks], by step

  std::vector<uint64_t> steps() const {
    std::vector<uint64_t> steps;
    for (const auto& snapshot : written[0]) steps.push_back(snapshot.first);
    return steps;
  }
  // The path of a file of a snapshot, whichever rank wrote it.
  fs::path find(uint64_t step, const std::string& name) const {
    for (const auto& of_rank : written)
      if (std::ranges::count(of_rank.at(step).files, name) > 0) return of_rank.at(step).folder / name;
    ADD_FAILURE() << "no rank has written " << name << " after step " << step;
    return {};
  }
  Files files(uint64_t step) const {
    Files files;
    for (const auto& of_rank : written)
      for (const std::string& name : of_rank.at(step).files) {
        EXPECT_FALSE(files.contains(name)) << name << " was written twice";
        files[name] = read_text_file(of_rank.at(step).folder / name);
      }
    return files;
  }
  // What the user sees of the learning after a step.
  std::vector<json> log(uint64_t after) const {
    std::vector<json> log;
    for (const json& event : events) {
      if (!event.contains("step") || event["step"].is_null() || event["step"] <= after) continue;
      json seen;
      for (const char* key : {"event", "step", "loss", "p_at_1", "p_at_3", "validation"})
        if (event.contains(key)) seen[key] = event[key];
      if (event["event"] == "progress" || event["event"] == "epoch") log.push_back(seen);
    }
    return log;
  }
};

class SnapshotTest : public TrainerTest {
 protected:
  SnapshotTest() {
    experiment_.train.log_every = 3;  // a snapshot comes between two events
    experiment_.train.checkpoint_every = 1000;
  }

  using Ranks = std::span<const std::unique_ptr<Trainer>>;
  using Groups = std::span<const std::unique_ptr<comm::Group>>;
  struct How {
    int size = 2;
    uint32_t every = 4;
    const PrivateRun* from = nullptr;  // continues from its snapshot of `step`
    uint64_t step = 0;
    uint32_t moved = 0;  // shifts the owner of each modelet by so many ranks
    double seconds_per_step = 0;
    double seconds_between_losses = 0;
    double retry_seconds = 2;
    bool shared = false;  // the ranks share a folder, and keep no snapshots
    EventSink on_event = {};
    uint64_t stop_after = 0;  // rank 0 is asked to stop when this step is reported
    // Called once on another thread, when a rank has warned that the run waits to write its result.
    std::function<void(Ranks, Groups)> when_waiting = {};
  };
  TrainJob job_of(const std::string& name, int rank, const How& how) const {
    const int ranks = how.size / replicas();
    TrainJob job{.run = name,
                 .experiment = experiment_,
                 .shape = shape_,
                 .owner = round_robin(experiment_, shape_, ranks),
                 .rank = rank,
                 .size = how.size,
                 .threads = 1,
                 .out = how.shared ? folder_ / name : folder_ / name / std::to_string(rank),
                 .private_folder = !how.shared};
    for (uint32_t& owner : job.owner) owner = (owner + how.moved) % static_cast<uint32_t>(ranks);
    job.snapshots = {.enabled = !how.shared,
                     .every_steps = how.every,
                     .seconds_between_losses = how.seconds_between_losses,
                     .retry_seconds = how.retry_seconds};
    if (how.from != nullptr) job.resume = bring(job, *how.from, how.step);
    return job;
  }
  // Does what an agent does before a rank continues: brings only the files that the rank needs.
  fs::path bring(const TrainJob& job, const PrivateRun& from, uint64_t step) const {
    const fs::path folder = shard::checkpoint_of_step(job.out / "checkpoints", step);
    fs::create_directories(folder);
    const std::string index = read_text_file(from.find(step, "index.json"));
    for (const std::string& name : files_needed(job, shard::parse_checkpoint_index(index, folder)))
      fs::copy_file(from.find(step, name), folder / name);
    return folder;
  }

  // Does what an agent does with a part: copies it, because the folder of the rank may be removed.
  static WrittenSnapshot take(WrittenSnapshot snapshot, const fs::path& holder) {
    const fs::path folder = holder / snapshot.folder.filename();
    fs::create_directories(folder);
    for (const std::string& name : snapshot.files) link_or_copy(snapshot.folder / name, folder / name);
    snapshot.folder = folder;
    return snapshot;
  }

  PrivateRun run_private(const std::string& name, const How& how) const {
    auto groups = make_groups(how.size);
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int rank = 0; rank < how.size; ++rank) {
      auto clock = std::make_unique<StepClock>(how.seconds_per_step);
      StepClock& of_steps = *clock;
      trainers.push_back(std::make_unique<Trainer>(job_of(name, rank, how), std::move(clock)));
      of_steps.trainer = trainers.back().get();
      trainers.back()->prepare();
    }
    PrivateRun result;
    result.written.resize(static_cast<size_t>(how.size));
    LogTail log(size_t{1} << 20);
    const std::jthread watcher([&](const std::stop_token& ended) {
      while (how.when_waiting && !ended.stop_requested()) {
        for (const std::string& line : log.take(SIZE_MAX))
          if (line.find("tries again") != line.npos) return how.when_waiting(trainers, groups);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const auto self = static_cast<size_t>(group.rank());
      trainers[self]->run(
          group,
          [&](const json& event) {
            result.events.push_back(event);
            if (how.on_event) how.on_event(event);
            if (event["event"] == "progress" && event["step"] == how.stop_after) trainers[0]->request_stop();
          },
          [&](const WrittenSnapshot& snapshot) {
            const WrittenSnapshot held = take(snapshot, folder_ / name / "held" / std::to_string(self));
            EXPECT_TRUE(result.written[self].emplace(snapshot.step, held).second) << snapshot.step;
          });
    });
    for (const auto& of_rank : result.written) {
      EXPECT_EQ(of_rank.size(), result.written[0].size()) << "all ranks make a snapshot after the same step";
      for (const auto& snapshot : of_rank) EXPECT_TRUE(result.written[0].contains(snapshot.first));
    }
    return result;
  }

  // Continues from each snapshot of `whole`. The files and the log must be the same.
  void expect_repeats(const std::string& name, const PrivateRun& whole, How how) const {
    how.from = &whole;
    const std::vector<uint64_t> steps = whole.steps();
    for (size_t i = 0; i + 1 < steps.size(); ++i) {
      how.step = steps[i];
      const PrivateRun rest = run_private(name + "-from-" + std::to_string(how.step), how);
      EXPECT_EQ(rest.events.front()["step"], how.step);
      EXPECT_EQ(rest.log(how.step), whole.log(how.step)) << "from " << how.step;
      EXPECT_EQ(rest.steps(), std::vector<uint64_t>(steps.begin() + static_cast<long>(i) + 1, steps.end()));
      for (const uint64_t step : rest.steps())
        EXPECT_TRUE(rest.files(step) == whole.files(step)) << "step " << step << " from " << how.step;
    }
  }
};

TEST_F(SnapshotTest, ARunThatGoesOnFromASnapshotIsTheUndisturbedOne) {
  experiment_.sampling.mode = SamplingMode::kLsh;
  experiment_.model.hidden = {32, 16};
  for (const int size : {1, 3}) {
    const std::string name = "whole" + std::to_string(size);
    const PrivateRun whole = run_private(name, {.size = size});
    EXPECT_THAT(whole.steps(), ElementsAre(4, 8, 12, 16, 20));
    for (const auto& [step, snapshot] : whole.written[0]) EXPECT_EQ(snapshot.keep, step == 20) << step;
    expect_repeats(name, whole, {.size = size});

    // Snapshots change nothing in the training, and contain the files of checkpoints.
    const Outcome shared = run("shared" + std::to_string(size), {.size = size});
    const Files last = whole.files(20);
    for (const ModeletSpec& modelet : partition_model(experiment_, shape_)) {
      const std::string file = modelet.name() + ".safetensors";
      EXPECT_TRUE(last.at(file) == read_text_file(shared.checkpoint() / file)) << file;
    }
    EXPECT_EQ(shared.events.back()["p_at_1"], whole.events.back()["p_at_1"]);
  }
}

TEST_F(SnapshotTest, GoesOnWithOtherOwnersOfTheModeletsAndWithFewerRanks) {
  const PrivateRun whole = run_private("whole", {.size = 3});
  int runs = 0;
  for (const How& how : {How{.size = 3, .from = &whole, .step = 8, .moved = 1},
                         How{.from = &whole, .step = 8}, How{.size = 1, .from = &whole, .step = 8}}) {
    const PrivateRun rest = run_private("rest" + std::to_string(runs++), how);
    const std::vector<json> expected = whole.log(8), log = rest.log(8);
    ASSERT_EQ(log.size(), expected.size());
    for (size_t i = 0; i < log.size(); ++i) {
      EXPECT_EQ(log[i]["step"], expected[i]["step"]);
      EXPECT_NEAR(log[i]["loss"], expected[i]["loss"], 1e-4 * expected[i]["loss"].get<double>());
    }
  }
}

TEST_F(SnapshotTest, ReplicasSettleForSnapshotsAndRepeat) {
  experiment_.exchange.codec = CodecKind::kInt8;
  experiment_.exchange.local_steps = 3;
  experiment_.cluster.replicas = 2;
  experiment_.train.batch = 16;
  const PrivateRun whole = run_private("whole", {.size = 4, .every = 5});
  EXPECT_THAT(whole.steps(), ElementsAre(5, 10, 15, 20));
  expect_repeats("whole", whole, {.size = 4, .every = 5});
}

// The replicas share the work of writing, but each rank ends with the best weights of all modelets that it
// holds.
TEST_F(SnapshotTest, ReplicasEndWithTheBestWeightsWhereverTheyWere) {
  experiment_.exchange.local_steps = 3;
  experiment_.cluster.replicas = 2;
  experiment_.train.batch = 16;
  experiment_.data.validation = 0.2f;
  experiment_.train.epochs = 40;
  experiment_.train.patience = 2;
  const PrivateRun whole = run_private("whole", {.size = 4, .every = 1000});
  const json& end = whole.events.back();
  ASSERT_LT(end["best_step"], end["steps"]);
  for (const uint32_t moved : {0u, 1u}) {
    const PrivateRun rest =
        run_private("rest" + std::to_string(moved),
                    {.size = 4, .every = 1000, .from = &whole, .step = end["steps"], .moved = moved});
    EXPECT_EQ(rest.events.back()["best_step"], end["best_step"]);
    EXPECT_EQ(rest.events.back()["p_at_1"], end["p_at_1"]);
  }
}

TEST_F(SnapshotTest, TheBestWeightsTravelWithTheModelets) {
  experiment_.data.validation = 0.2f;  // an epoch is 8 steps
  experiment_.train.epochs = 40;
  experiment_.train.patience = 3;
  const How how{.size = 3, .every = 11};
  const PrivateRun whole = run_private("whole", how);
  const json& end = whole.events.back();
  const uint64_t best = end["best_step"], steps = end["steps"];
  ASSERT_EQ(steps, best + 3 * 8);
  EXPECT_TRUE(whole.written[0].at(best).keep);
  std::set<std::string> kept;
  for (const auto& [step, snapshot] : whole.written[0])
    if (snapshot.keep) kept.insert(snapshot.folder.filename());
  size_t found = 0;
  for (const fs::path& folder : checkpoints("whole/0")) found += kept.contains(folder);
  EXPECT_EQ(found, experiment_.train.keep_checkpoints) << "the trainer removes its own old parts";
  EXPECT_FALSE(whole.files(best).contains("best.index.json")) << "it is the best itself";
  const Files files = whole.files(steps);
  for (const auto& [name, content] : whole.files(best))
    EXPECT_TRUE(files.at("best." + name) == content) << name;

  int runs = 0;
  for (const uint64_t step : whole.steps()) {
    if (step + 11 < best || step == steps) continue;
    for (const uint32_t moved : {0u, 1u}) {
      const std::string name = "rest" + std::to_string(runs++);
      const PrivateRun rest =
          run_private(name, {.size = 3, .every = 11, .from = &whole, .step = step, .moved = moved});
      const json& last = rest.events.back();
      EXPECT_EQ(last["best_step"], best) << "from " << step;
      EXPECT_EQ(last["p_at_1"], end["p_at_1"]) << "tested with the best weights, from " << step;
      if (moved > 0) continue;
      EXPECT_EQ(rest.log(step), whole.log(step)) << "from " << step;
      EXPECT_TRUE(rest.files(steps) == files) << "from " << step;
    }
  }
  EXPECT_GE(runs, 6);
}

// The files that a client sends of a checkpoint in a shared folder, so that a pool can continue from it.
TEST_F(SnapshotTest, ACheckpointGoesOnWithoutItsFolder) {
  experiment_.data.validation = 0.2f;
  experiment_.train.epochs = 40;
  experiment_.train.patience = 3;
  const Outcome whole = run("whole");
  const uint64_t best = whole.events.back()["best_step"];
  const fs::path last = shard::checkpoint_of_step(folder_ / "whole" / "checkpoints",
                                                  whole.events.back()["steps"].get<uint64_t>());
  ASSERT_NE(last, whole.checkpoint());
  const fs::path sent = folder_ / "sent";
  fs::create_directories(sent);
  for (const NamedFile& file : snapshot_files(shard::Checkpoint::open(last)))
    fs::copy_file(file.path, sent / file.name);
  TrainJob job = job_of("alone", 0, {.size = 1});
  job.resume = sent;
  for (const std::string& name : files_needed(job, shard::Checkpoint::open(sent).index()))
    EXPECT_TRUE(fs::exists(sent / name)) << name;
  Trainer trainer(job);
  trainer.prepare();
  json end;
  auto groups = make_groups(1);
  trainer.run(*groups[0], [&](const json& event) { end = event; });
  EXPECT_EQ(end["best_step"], best);
  EXPECT_EQ(end["p_at_1"], whole.events.back()["p_at_1"]);
  fs::remove_all(whole.checkpoint());
  EXPECT_THROW(snapshot_files(shard::Checkpoint::open(last)), UsageError);
}

// Each change of the group leaves a part of a checkpoint. These parts must not fill the disk.
TEST_F(SnapshotTest, WhatFormerGroupsLeftGoes) {
  const PrivateRun whole = run_private("whole", {.size = 1});
  const auto part = [&](uint64_t step) {
    return shard::checkpoint_of_step(folder_ / "whole" / "0" / "checkpoints", step);
  };
  for (const uint64_t step : {4, 12, 16, 20}) EXPECT_TRUE(fs::exists(part(step))) << step;
  fs::remove_all(part(8));  // the agent brings it
  const TrainJob job = job_of("whole", 0, {.size = 1, .from = &whole, .step = 8});
  Trainer trainer(job);
  trainer.prepare();
  for (const uint64_t step : {12, 16, 20})
    EXPECT_FALSE(fs::exists(part(step))) << step << " is written again";
  EXPECT_TRUE(fs::exists(part(4)));
  auto groups = make_groups(1);
  trainer.run(*groups[0], [](const json&) {});
  EXPECT_FALSE(fs::exists(part(4))) << "there are train.keep_checkpoints = 2 newer ones";
  for (const uint64_t step : {8, 20}) EXPECT_TRUE(fs::exists(part(step))) << step;
}

// Steps are begun ahead, but never beyond a snapshot that rank 0 has announced.
TEST_F(SnapshotTest, ABudgetSaysWhenAndNeverWhatIsLearned) {
  experiment_.train.log_every = 1000;
  const PrivateRun whole = run_private("whole", {.size = 3, .every = 0, .seconds_per_step = 1});
  // A snapshot every five seconds, announced one step before. The steps that end an epoch are not begun
  // ahead.
  EXPECT_GE(whole.steps().size(), 3u);
  EXPECT_LE(whole.steps().size(), 5u);
  EXPECT_EQ(whole.steps().back(), 20u);
  const PrivateRun fixed = run_private("fixed", {.size = 3, .every = 1000, .seconds_per_step = 1});
  EXPECT_THAT(fixed.steps(), ElementsAre(20));
  EXPECT_EQ(whole.log(0), fixed.log(0));
  Files a = whole.files(20), b = fixed.files(20);
  a.erase("index.json"), b.erase("index.json");  // has the seconds
  EXPECT_TRUE(a == b);
}

// If the disk of a rank is full, the rank makes no snapshot. Then no rank does, and the run continues.
TEST_F(SnapshotTest, ASnapshotThatCannotBeWrittenIsLeftOut) {
  const fs::path checkpoints = folder_ / "full" / "1" / "checkpoints", aside = folder_ / "aside";
  experiment_.train.log_every = 1;
  const PrivateRun result = run_private("full", {.on_event = [&](const json& event) {
                                          if (event["event"] != "progress") return;
                                          if (event["step"] == 5) {
                                            fs::rename(checkpoints, aside);
                                            AtomicFile(checkpoints).commit();
                                          } else if (event["step"] == 10) {
                                            fs::remove(checkpoints);
                                            fs::rename(aside, checkpoints);
                                          }
                                        }});
  EXPECT_THAT(result.steps(), ElementsAre(4, 12, 16, 20));
  EXPECT_FALSE(fs::exists(folder_ / "full" / "0" / "checkpoints" / ".step-0000000008.partial"));
  EXPECT_EQ(result.events.back()["event"], "finished");
}

// A file in the place of a folder stands for a full disk.
class FullDiskTest : public SnapshotTest {
 protected:
  FullDiskTest() { experiment_.train.log_every = 1; }

  // The disk of rank 1 is full from this step on.
  static EventSink full_after(uint64_t step, const fs::path& folder) {
    return [=](const json& event) {
      if (event["event"] != "progress" || event["step"] != step) return;
      if (fs::exists(folder)) fs::rename(folder, aside(folder));
      AtomicFile(folder).commit();
    };
  }
  static void make_room(const fs::path& folder) {
    fs::remove(folder);
    if (fs::exists(aside(folder))) fs::rename(aside(folder), folder);
  }
  // Returns the text of the error with which the run ends.
  template <class Failure>
  std::string failure_of(const std::string& name, const How& how) const {
    try {
      run_private(name, how);
    } catch (const Failure& error) {
      return error.what();
    }
    return "no error";
  }
  fs::path checkpoints_of(const std::string& name) const { return folder_ / name / "1" / "checkpoints"; }
  static fs::path aside(const fs::path& folder) { return folder.string() + ".aside"; }
};

TEST_F(FullDiskTest, ARunWaitsForRoomForItsResult) {
  const PrivateRun whole = run_private("whole", {.size = 3});
  const fs::path folder = checkpoints_of("waits");
  const PrivateRun waited = run_private("waits", {.size = 3,
                                                  .retry_seconds = 0.01,
                                                  .on_event = full_after(19, folder),
                                                  .when_waiting = [&](Ranks, Groups) { make_room(folder); }});
  EXPECT_EQ(waited.steps(), whole.steps());
  EXPECT_EQ(waited.log(0), whole.log(0));
  EXPECT_TRUE(waited.files(20) == whole.files(20));
  EXPECT_EQ(waited.events.back(), [&] {
    json end = whole.events.back();
    end["checkpoint"] = waited.events.back()["checkpoint"];
    end["peak_rss_bytes"] = waited.events.back()["peak_rss_bytes"];
    return end;
  }());
}

// The other ranks have their parts in place already when one of them fails.
TEST_F(FullDiskTest, ARunWaitsForRoomForTheBestWeights) {
  experiment_.data.validation = 0.2f;  // an epoch is 8 steps
  for (const int replicas : {1, 2}) {
    experiment_.cluster.replicas = static_cast<uint32_t>(replicas);
    experiment_.exchange.local_steps = 4;
    const std::string name = std::to_string(replicas);
    const How how{.size = 2 * replicas, .every = 1000};
    const PrivateRun whole = run_private("whole" + name, how);
    const fs::path folder = folder_ / ("waits" + name) / "1" / "best";
    How full = how;
    full.retry_seconds = 0.01;
    full.on_event = full_after(3, folder);
    // Another name of a file of the part that is in place already.
    const fs::path kept = folder_ / ("kept" + name);
    const fs::path part = shard::checkpoint_of_step(checkpoints_of("waits" + name), whole.steps().front()) /
                          whole.written[1].at(whole.steps().front()).files.front();
    full.when_waiting = [&](Ranks, Groups) {
      if (!fs::exists(kept)) fs::create_hard_link(part, kept);
      make_room(folder);
    };
    const PrivateRun waited = run_private("waits" + name, full);
    EXPECT_TRUE(fs::equivalent(part, kept)) << "only the best weights were written again";
    ASSERT_EQ(waited.steps(), whole.steps());
    EXPECT_EQ(waited.log(0), whole.log(0));
    for (const uint64_t step : whole.steps()) EXPECT_TRUE(waited.files(step) == whole.files(step)) << step;
  }
}

// In a shared folder the evaluation says only after the checkpoint is written whether it is the best one.
TEST_F(FullDiskTest, ARunWaitsForRoomToSayWhichWeightsAreBest) {
  experiment_.data.validation = 0.2f;
  experiment_.train.checkpoint_every = 0;  // after each epoch
  fs::path checkpoint;
  const PrivateRun run =
      run_private("shared", {.retry_seconds = 0.01,
                             .shared = true,
                             .on_event =
                                 [&](const json& event) {
                                   if (event["event"] != "checkpoint" || !checkpoint.empty()) return;
                                   checkpoint = event["path"].get<std::string>();
                                   fs::rename(checkpoint, aside(checkpoint));
                                   AtomicFile(checkpoint).commit();
                                 },
                             .when_waiting = [&](Ranks, Groups) { make_room(checkpoint); }});
  ASSERT_FALSE(checkpoint.empty());
  ASSERT_FALSE(fs::exists(aside(checkpoint))) << "it has waited";
  const auto index = shard::Checkpoint::open(checkpoint).index();
  EXPECT_EQ(index.best_step, index.step) << "the first evaluation finds the best weights so far";
}

// Whoever asks a run to stop wants it to end: it tries once, whenever the disk became full.
TEST_F(FullDiskTest, ARunThatStopsDoesNotWaitForRoom) {
  EXPECT_THAT(failure_of<PeerError>("stops", {.every = 1000,
                                              .retry_seconds = 3600,
                                              .on_event = full_after(4, checkpoints_of("stops")),
                                              .stop_after = 4}),
              AllOf(HasSubstr("could not write its part"), HasSubstr("stopped while it waited")));
}

// Another group may have room, so it is not the end of the run.
TEST_F(FullDiskTest, TheWaitingEnds) {
  EXPECT_THAT(failure_of<PeerError>(
                  "never", {.retry_seconds = 0, .on_event = full_after(19, checkpoints_of("never"))}),
              HasSubstr("could not write its part"));
  EXPECT_THAT(failure_of<PeerError>("stopped", {.retry_seconds = 3600,
                                                .on_event = full_after(19, checkpoints_of("stopped")),
                                                .when_waiting =
                                                    [](Ranks trainers, Groups) {
                                                      for (const auto& trainer : trainers)
                                                        trainer->request_stop();
                                                    }}),
              HasSubstr("stopped while it waited"));
  EXPECT_EQ(failure_of<Interrupted>("aborted", {.retry_seconds = 3600,
                                                .on_event = full_after(19, checkpoints_of("aborted")),
                                                .when_waiting =
                                                    [](Ranks, Groups groups) {
                                                      for (const auto& group : groups)
                                                        group->interrupt("enough");
                                                    }}),
            "enough");
}

TEST_F(SnapshotTest, TwoProcessesDoNotShareAPrivateFolder) {
  const TrainJob job = job_of("shared", 1, {});
  Trainer first(job), second(job);
  first.prepare();
  try {
    second.prepare();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--work-dir"));
  }
}

// Each half of an interval.
TEST(SnapshotBudget, TheCostsSayHowOften) {
  SnapshotBudget time({.enabled = true}, 0, 100);
  EXPECT_EQ(time.interval(), SnapshotBudget::kLeastSeconds);
  EXPECT_FALSE(time.due(104));
  EXPECT_TRUE(time.due(105));
  time.made(105, 1, 2, 1000);
  EXPECT_EQ(time.interval(), 400) << "1 % of the time";
  EXPECT_FALSE(time.due(304));
  EXPECT_TRUE(time.due(305));
  SnapshotBudget losses({.enabled = true, .seconds_between_losses = 900}, 0, 0);
  losses.made(0, 1, 2, 1000);
  EXPECT_EQ(losses.interval(), 60) << "Young: sqrt(2 x 2 x 900)";
  SnapshotBudget link({.enabled = true, .bytes_per_second = 10, .seconds_between_losses = 900}, 0, 0);
  link.made(0, 1, 2, 1000);
  EXPECT_EQ(link.interval(), 200) << "1000 bytes at 10 bytes a second, and as long again";
}

TEST(SnapshotBudget, StepsThatCopiesMakeSlowerAreACost) {
  bool safe = true;
  SnapshotBudget budget({.enabled = true, .is_safe = [&](uint64_t) { return safe; }}, 0, 0);
  const auto steps = [&](int count, double seconds) {
    for (int step = 0; step < count; ++step) budget.stepped(seconds);
  };
  steps(50, 0.5);
  budget.made(0, 1, 2, 1000);
  EXPECT_EQ(budget.interval(), 400) << "what was before the snapshot is no cost of it";
  safe = false;
  steps(99, 0.75);
  steps(1, 60);  // a node stood still
  safe = true;
  steps(1, 20);
  steps(50, 0.5);
  EXPECT_EQ(budget.interval(), 200 * (2 + 100 * 0.25));
  budget.made(0, 2, 2, 1000);
  EXPECT_EQ(budget.interval(), 200 * (2 + 100 * 0.25)) << "as the last time";
  safe = false;
  steps(5000, 0.25);
  safe = true;
  steps(50, 0.5);
  EXPECT_EQ(budget.interval(), 200 * (2 + 50 * 0.25)) << "once may be chance";
}

TEST(SnapshotBudget, TheNextOneWaitsUntilTheLastOneIsSafe) {
  uint64_t safe = 0;
  SnapshotBudget budget({.enabled = true, .is_safe = [&](uint64_t step) { return step <= safe; }}, 0, 0);
  const double half = budget.interval() / 2;
  EXPECT_TRUE(budget.due(half)) << "there was none yet";
  budget.made(0, 10, 0, 0);
  EXPECT_FALSE(budget.due(half));
  safe = 10;
  EXPECT_TRUE(budget.due(half));
  budget.made(0, 20, 0, 0);
  EXPECT_FALSE(budget.due(SnapshotBudget::kPatience * half - 0.1));
  EXPECT_TRUE(budget.due(SnapshotBudget::kPatience * half)) << "it may never be";
  budget.made(0, 0, 0, 0);
  EXPECT_TRUE(budget.due(half)) << "it was not written";
}

}  // namespace
}  // namespace modelet::agent::testing
