// Trainer from data to the last checkpoint, alone and on several ranks in this process: what it learns, what
// it reports, how it stops and goes on.
#include "node_agent/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "shard/checkpoint.h"
#include "shard/data/synth.h"
#include "shard/modelet_state.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using shard::testing::bytes_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Outcome {
  std::vector<json> events;
  bool interrupted = false;

  std::vector<json> of_kind(const std::string& kind) const {
    std::vector<json> found;
    for (const json& event : events)
      if (event.at("event") == kind) found.push_back(event);
    return found;
  }
  // Of every step, if the experiment logs each.
  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const json& event : of_kind("progress")) losses.push_back(event.at("loss"));
    return losses;
  }
  fs::path checkpoint() const { return events.back().at("checkpoint").get<std::string>(); }
};

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    // 300 samples are nine batches of 32 and one of 12.
    write_data({.rows_train = 300,
                .rows_test = 100,
                .features = 200,
                .labels = 60,
                .features_per_row = 12,
                .labels_per_row = 1.5,
                .noise = 0.1});
    experiment_.model.hidden = {32};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 3};
    experiment_.sampling.uniform = 20;
    experiment_.sampling.tables = 8;
    experiment_.sampling.bits = 4;
    experiment_.sampling.rehash_every = 5;
    experiment_.train.epochs = 2;
    experiment_.train.batch = 32;
    experiment_.train.learning_rate = 0.02f;
    experiment_.train.log_every = 1;
    experiment_.exchange.codec = "none";
  }

  void write_data(const shard::SynthOptions& options) {
    shard::write_synth(options, folder_.path(), false);
    experiment_.data.train = folder_ / "train.mlt";
    experiment_.data.test = folder_ / "test.mlt";
    shape_ = shard::describe_shape(shard::Dataset::open(experiment_.data.train),
                                   shard::Dataset::open(experiment_.data.test));
  }

  // `stop_after` > 0: asks rank `stopper` to stop when that step is reported. The run's folder is folder_ /
  // name.
  struct Options {
    int size = 1;
    unsigned threads = 1;
    fs::path resume;
    uint64_t stop_after = 0;
    int stopper = 0;
    uint64_t others_wait_for = 0;  // steps of rank 0, which does so many before the others begin
  };
  Outcome run(const std::string& name, const Options& options) const {
    auto groups = make_groups(options.size);
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int rank = 0; rank < options.size; ++rank) {
      trainers.push_back(std::make_unique<Trainer>(
          TrainJob{.run = name,
                   .experiment = experiment_,
                   .shape = shape_,
                   .owner = round_robin(experiment_, shape_, options.size / replicas()),
                   .rank = rank,
                   .size = options.size,
                   .threads = options.threads,
                   .out = folder_ / name,
                   .resume = options.resume}));
      trainers.back()->prepare();
    }
    Outcome result;
    std::atomic<int> interrupted = 0;
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const EventSink sink = [&](const json& event) {
        EXPECT_EQ(group.rank(), 0) << "only rank 0 reports";
        result.events.push_back(event);
        if (options.stop_after > 0 && event["event"] == "progress" && event["step"] == options.stop_after)
          trainers[static_cast<size_t>(options.stopper)]->request_stop();
      };
      while (group.rank() > 0 && trainers[0]->step() < options.others_wait_for) std::this_thread::yield();
      try {
        trainers[static_cast<size_t>(group.rank())]->run(group, sink);
      } catch (const Interrupted&) {
        ++interrupted;
      }
    });
    EXPECT_TRUE(interrupted == 0 || interrupted == options.size) << "ranks stop together";
    result.interrupted = interrupted > 0;
    return result;
  }
  Outcome run(const std::string& name) const { return run(name, Options{}); }
  int replicas() const { return static_cast<int>(experiment_.cluster.replicas); }

  // What goes wrong with resuming from a folder.
  std::string failure(const fs::path& resume) const {
    try {
      run("fails", {.resume = resume});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::vector<fs::path> checkpoints(const std::string& name) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / name / "checkpoints"))
      found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }

  void expect_same_modelets(const fs::path& a, const fs::path& b) const {
    const ModeletSpec first = cut_model(experiment_, shape_)[0];
    ASSERT_TRUE(fs::exists(a / (first.name() + ".safetensors"))) << a;
    for (const ModeletSpec& spec : cut_model(experiment_, shape_)) {
      const std::string file = spec.name() + ".safetensors";
      EXPECT_TRUE(bytes_of(a / file) == bytes_of(b / file)) << file << " differs";
    }
  }

  TemporaryFolder folder_;
  Experiment experiment_;
  DataShape shape_;
};

// ---- Learning and events

TEST_F(TrainerTest, LearnsMoreThanWhichLabelIsMostFrequent) {
  const shard::Dataset train = shard::Dataset::open(experiment_.data.train),
                       test = shard::Dataset::open(experiment_.data.test);
  const auto with_label = [](const shard::Dataset& data, uint32_t label) {
    size_t count = 0;
    for (size_t row = 0; row < data.rows(); ++row)
      count += std::ranges::count(data.sample(row).labels, label);
    return static_cast<double>(count) / static_cast<double>(data.rows());
  };
  uint32_t frequent = 0;
  for (uint32_t label = 1; label < 60; ++label)
    if (with_label(train, label) > with_label(train, frequent)) frequent = label;
  const double baseline = with_label(test, frequent);

  experiment_.train.epochs = 10;
  experiment_.train.checkpoint_every = 1000;
  int runs = 0;
  for (const SamplingMode mode :
       {SamplingMode::kFull, SamplingMode::kUniform, SamplingMode::kLsh, SamplingMode::kLshPerSample})
    for (const Loss loss : {Loss::kSoftmax, Loss::kSigmoid}) {
      experiment_.sampling.mode = mode;
      experiment_.model.loss = loss;
      const Outcome result = run("learns" + std::to_string(runs++));
      EXPECT_GT(result.events.back().at("p_at_1").get<double>(), baseline + 0.25)
          << "mode " << static_cast<int>(mode) << ", loss " << static_cast<int>(loss) << ", baseline "
          << baseline;
    }
}

TEST_F(TrainerTest, AFolderHoldsOneRun) {
  run("folder");
  try {
    run("folder");
    FAIL() << "a second run was let into the folder of the first";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("holds a run already"));
  }
}

TEST_F(TrainerTest, TwoRunsAtOnceDoNotShareAFolder) {
  std::optional<FileLock> other = shard::take_run_folder(folder_ / "folder", {});
  try {
    run("folder");
    FAIL() << "a second run was let into the folder of one that goes on";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), AllOf(HasSubstr("another run trains"), HasSubstr("--out")));
  }
  other.reset();
  run("folder");
}

TEST_F(TrainerTest, ReportsEventsInOrderWithTheirFields) {
  experiment_.train.log_every = 4;
  for (const int size : {1, 3}) {
    const Outcome result = run("events" + std::to_string(size), {.size = size});
    std::vector<std::string> order;
    for (const json& event : result.events) {
      const std::string kind = event.at("event");
      order.push_back(event.contains("step") ? kind + " " + event.at("step").dump() : kind);
    }
    EXPECT_THAT(order, ElementsAre("started 0", "progress 4", "progress 8", "epoch 10", "checkpoint 10",
                                   "progress 12", "progress 16", "progress 20", "epoch 20", "checkpoint 20",
                                   "finished"));
    const std::map<std::string, std::vector<std::string>> fields = {
        {"started",
         {"run", "epochs", "steps", "step", "parameters", "nodes", "threads", "features", "labels",
          "train_rows", "instruction_set"}},
        {"progress",
         {"step", "steps", "epoch", "loss", "samples_per_second", "eta_seconds",
          "bytes_sent_per_node_per_step", "learning_rate"}},
        {"epoch",
         {"epoch", "step", "loss", "train_seconds", "samples_per_second", "p_at_1", "p_at_3", "p_at_5"}},
        {"checkpoint", {"step", "path"}},
        {"finished",
         {"p_at_1", "p_at_3", "p_at_5", "train_seconds", "samples_per_second", "steps",
          "bytes_sent_per_node_per_step", "peak_rss_bytes", "checkpoint"}}};
    for (const json& event : result.events)
      for (const std::string& field : fields.at(event["event"]))
        EXPECT_TRUE(event.contains(field)) << field << " in " << event;
    const json& first = result.events.front();
    EXPECT_EQ(first["nodes"], size);
    EXPECT_EQ(first["steps"], 20);
    EXPECT_EQ(first["parameters"], 201 * 32 + 33 * 60);
    EXPECT_EQ(result.events.back()["steps"], 20);
    EXPECT_EQ(result.events.back()["bytes_sent_per_node_per_step"] > 0, size > 1);
    EXPECT_TRUE(fs::exists(result.checkpoint() / "index.json"));
  }
}

TEST_F(TrainerTest, MeansOfTheLossAddUp) {
  const Outcome each = run("each");
  experiment_.train.log_every = 4;
  const Outcome means = run("means");
  const std::vector<double> losses = each.losses();
  const auto mean = [&](size_t first, size_t last) {
    return std::accumulate(losses.begin() + static_cast<ptrdiff_t>(first),
                           losses.begin() + static_cast<ptrdiff_t>(last), 0.0) /
           static_cast<double>(last - first);
  };
  EXPECT_THAT(means.losses(), ElementsAre(mean(0, 4), mean(4, 8), mean(8, 12), mean(12, 16), mean(16, 20)));
  EXPECT_EQ(means.of_kind("epoch")[1]["loss"], mean(10, 20));
}

TEST_F(TrainerTest, EvaluatesOnlyAtTheEndWhenToldSo) {
  experiment_.train.epochs = 3;
  experiment_.train.evaluate_every = 0;
  std::vector<bool> evaluated;
  const Outcome result = run("late");
  for (const json& event : result.of_kind("epoch")) evaluated.push_back(event.contains("p_at_1"));
  EXPECT_THAT(evaluated, ElementsAre(false, false, true));
  experiment_.train.evaluate_every = 2;
  evaluated.clear();
  for (const json& event : run("second").of_kind("epoch")) evaluated.push_back(event.contains("p_at_1"));
  EXPECT_THAT(evaluated, ElementsAre(false, true, true));
}

TEST_F(TrainerTest, WritesCheckpointsEveryFewStepsAndAtTheEndAndKeepsTheNewest) {
  experiment_.train.checkpoint_every = 3;
  experiment_.train.keep_checkpoints = 3;
  std::vector<uint64_t> steps;
  const Outcome result = run("kept");
  for (const json& event : result.of_kind("checkpoint")) steps.push_back(event["step"]);
  EXPECT_THAT(steps, ElementsAre(3, 6, 9, 12, 15, 18, 20));
  EXPECT_THAT(checkpoints("kept"), ElementsAre("step-0000000015", "step-0000000018", "step-0000000020"));
  EXPECT_EQ(result.checkpoint().filename(), "step-0000000020");
}

TEST_F(TrainerTest, ABatchMayBeLargerThanTheData) {
  experiment_.train.batch = 1000;
  const Outcome result = run("large");
  EXPECT_EQ(result.events.back()["steps"], 2) << "one step an epoch";
}

TEST_F(TrainerTest, OneSampleIsEnough) {
  write_data({.rows_train = 1,
              .rows_test = 1,
              .features = 20,
              .labels = 4,
              .features_per_row = 5,
              .labels_per_row = 1});
  int runs = 0;
  for (const SamplingMode mode : {SamplingMode::kFull, SamplingMode::kLsh, SamplingMode::kLshPerSample}) {
    experiment_.sampling.mode = mode;
    experiment_.train.epochs = 12;
    experiment_.train.checkpoint_every = 1000;
    for (const int size : {1, 5}) {
      const std::vector<double> losses = run("one" + std::to_string(runs++), {.size = size}).losses();
      ASSERT_EQ(losses.size(), 12u);
      EXPECT_LT(losses.back(), losses.front());
    }
  }
}

// ---- Validation

class ValidationTest : public TrainerTest {
 protected:
  ValidationTest() {
    experiment_.data.validation = 0.2f;  // 60 of 300 samples; an epoch is 8 steps
    experiment_.train.epochs = 40;
    experiment_.train.patience = 3;
    experiment_.train.metric = "p_at_3";
    experiment_.train.keep_checkpoints = 1;
  }

  // The first of the epochs with the highest validation figure.
  static uint64_t best_step(const Outcome& result) {
    double best = -1;
    uint64_t step = 0;
    for (const json& event : result.of_kind("epoch"))
      if (const double value = event.at("validation").at("p_at_3"); value > best) {
        best = value;
        step = event.at("step");
      }
    return step;
  }
};

TEST_F(ValidationTest, EndsWithTheBestWeightsAndTestsOnlyThose) {
  for (const int size : {1, 3}) {
    const std::string name = "early" + std::to_string(size);
    const Outcome result = run(name, {.size = size});
    EXPECT_EQ(result.events.front()["validation_rows"], 60);
    EXPECT_EQ(result.events.front()["steps"], 40 * 8) << "240 samples are trained on";
    for (const json& event : result.of_kind("epoch")) EXPECT_FALSE(event.contains("p_at_1")) << event;
    const json& last = result.events.back();
    const uint64_t best = best_step(result);
    EXPECT_EQ(last["best_step"], best);
    EXPECT_EQ(last["steps"], best + 3 * 8) << "three epochs without improvement";
    EXPECT_LT(last["steps"], 40 * 8);
    EXPECT_EQ(last["validation"], result.of_kind("epoch")[best / 8 - 1]["validation"]);
    EXPECT_EQ(result.checkpoint(), shard::checkpoint_of_step(folder_ / name / "checkpoints", best));
    EXPECT_EQ(shard::find_model(folder_ / name), result.checkpoint());
    EXPECT_EQ(checkpoints(name).size(), 2u) << "the best and the newest";

    // A run that has just these steps.
    const uint32_t epochs = std::exchange(experiment_.train.epochs, static_cast<uint32_t>(best / 8));
    const Outcome exact = run(name + "-exact", {.size = size});
    experiment_.train.epochs = epochs;
    EXPECT_EQ(exact.events.back()["steps"], best);
    expect_same_modelets(result.checkpoint(), exact.checkpoint());
    EXPECT_EQ(last["p_at_1"], exact.events.back()["p_at_1"]) << "tested with the best weights";
  }
}

TEST_F(ValidationTest, WithoutPatienceAllEpochsAreTrainedAndTheBestIsKept) {
  experiment_.train.patience = 0;
  experiment_.train.epochs = 15;
  experiment_.train.checkpoint_every = 1000;
  const Outcome result = run("whole");
  EXPECT_EQ(result.events.back()["steps"], 15 * 8);
  EXPECT_EQ(result.events.back()["best_step"], best_step(result));
  EXPECT_TRUE(fs::exists(result.checkpoint() / "index.json"));
}

TEST_F(ValidationTest, AResumedRunEndsAsIfItHadNotStopped) {
  const Outcome whole = run("whole");
  const uint64_t best = whole.events.back()["best_step"], end = whole.events.back()["steps"];
  for (const uint64_t stop_after : {best / 2, best + 9}) {
    const std::string name = "part" + std::to_string(stop_after);
    ASSERT_TRUE(run(name, {.stop_after = stop_after}).interrupted);
    // Into another folder: the best checkpoint comes along.
    for (const std::string& into : {name + "-elsewhere", name}) {
      const Outcome rest = run(into, {.size = 2, .resume = folder_ / name});
      EXPECT_EQ(rest.events.back()["best_step"], best);
      EXPECT_EQ(rest.events.back()["steps"], end);
      EXPECT_EQ(rest.checkpoint(), shard::checkpoint_of_step(folder_ / into / "checkpoints", best));
      EXPECT_TRUE(fs::exists(rest.checkpoint() / "index.json"));
    }
  }
  const Outcome again = run("whole", {.resume = folder_ / "whole"});
  EXPECT_EQ(again.events.size(), 2u) << "started and finished";
  EXPECT_EQ(again.events.back()["p_at_1"], whole.events.back()["p_at_1"]);
  EXPECT_EQ(again.checkpoint(), whole.checkpoint());

  fs::remove_all(whole.checkpoint());
  EXPECT_THAT(failure(folder_ / "whole"), HasSubstr("best checkpoint of the run to resume is missing"));
  experiment_.train.metric = "log_loss";
  EXPECT_THAT(failure({}), AllOf(HasSubstr("train.metric"), HasSubstr("ndcg_at_3")));
  experiment_.data.validation = 0.1f;
  EXPECT_THAT(failure(folder_ / "whole"), HasSubstr("data.validation"));
}

// ---- Stop and resume

struct Resume {
  SamplingMode mode;
  OptimizerKind optimizer;
  Precision precision = Precision::kFp32;
};

class ResumeTest : public TrainerTest, public ::testing::WithParamInterface<Resume> {};

TEST_P(ResumeTest, GoesOnToTheBitAsIfItHadNotStopped) {
  experiment_.sampling.mode = GetParam().mode;
  experiment_.optimizer.kind = GetParam().optimizer;
  experiment_.model.precision = GetParam().precision;
  experiment_.model.hidden = {32, 16};
  const Outcome whole = run("whole");
  ASSERT_EQ(whole.losses().size(), 20u);
  // A re-hash begins after step 5 and takes over after step 10: at 8 one is pending, at 10 the next has just
  // begun.
  for (const uint64_t stop_after : {7, 9, 12}) {
    const std::string name = "part" + std::to_string(stop_after);
    const Outcome part = run(name, {.stop_after = stop_after});
    ASSERT_TRUE(part.interrupted);
    EXPECT_EQ(part.events.back()["event"], "interrupted");
    EXPECT_EQ(part.events.back()["step"], stop_after + 1) << "at the next step boundary";
    const Outcome rest = run(name, {.threads = kSeveralThreads, .resume = folder_ / name});
    EXPECT_EQ(rest.events.front()["step"], stop_after + 1);
    std::vector<double> losses = part.losses();
    for (const double loss : rest.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses());
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
    EXPECT_EQ(rest.events.back()["p_at_1"], whole.events.back()["p_at_1"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ResumeTest,
                         ::testing::Values(Resume{SamplingMode::kUniform, OptimizerKind::kAdam},
                                           Resume{SamplingMode::kUniform, OptimizerKind::kAdagrad},
                                           Resume{SamplingMode::kUniform, OptimizerKind::kSgd},
                                           Resume{SamplingMode::kLsh, OptimizerKind::kAdam},
                                           Resume{SamplingMode::kLsh, OptimizerKind::kSgd},
                                           Resume{SamplingMode::kLshPerSample, OptimizerKind::kAdagrad},
                                           Resume{SamplingMode::kLsh, OptimizerKind::kAdam, Precision::kBf16},
                                           Resume{SamplingMode::kUniform, OptimizerKind::kSgd,
                                                  Precision::kBf16}));

TEST_F(TrainerTest, ACheckpointOfFourRanksGoesOnWithOneAndTheOtherWayRound) {
  experiment_.sampling.mode = SamplingMode::kLsh;
  const std::vector<double> whole = run("whole").losses();
  for (const int before : {1, 4}) {
    const int after = before == 1 ? 4 : 1;
    const std::string name = "from" + std::to_string(before);
    const Outcome part = run(name, {.size = before, .stop_after = 7, .stopper = before - 1});
    ASSERT_TRUE(part.interrupted) << "any rank can ask for a stop";

    // Read and written again: the same bytes.
    const shard::Checkpoint checkpoint = shard::Checkpoint::open(part.checkpoint());
    auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1);
    const shard::CheckpointWriter writer(folder_ / (name + "-again"), 8);
    for (const auto& modelet : ranks[0]->network.modelets()) {
      shard::restore_modelet(*modelet, checkpoint);
      shard::save_modelet(*modelet, writer);
    }
    expect_same_modelets(part.checkpoint(), folder_ / (name + "-again") / ".step-0000000008.partial");

    const Outcome rest = run(name, {.size = after, .resume = part.checkpoint()});
    std::vector<double> losses = part.losses();
    for (const double loss : rest.losses()) losses.push_back(loss);
    ASSERT_EQ(losses.size(), whole.size());
    for (size_t s = 0; s < whole.size(); ++s)
      EXPECT_NEAR(losses[s], whole[s], 1e-4 * whole[s]) << "step " << s;
  }
}

// Codecs keep nothing between steps, and draw by the step: a run that loses in the exchange repeats too.
TEST_F(TrainerTest, ResumingWithLossyCodecsGoesOnToTheBit) {
  experiment_.exchange.codec = "int8";
  experiment_.model.hidden = {32, 16};
  std::vector<double> losses_of_int4;
  for (const std::string gradients : {"int4", "topk"}) {
    experiment_.exchange.gradient_codec = gradients;
    const Outcome whole = run("whole-" + gradients, {.size = 2});
    const Outcome part = run(gradients, {.size = 2, .stop_after = 7});
    ASSERT_TRUE(part.interrupted);
    const Outcome rest = run(gradients, {.size = 2, .resume = folder_ / gradients});
    std::vector<double> losses = part.losses();
    for (const double loss : rest.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses());
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
    EXPECT_NE(losses, losses_of_int4) << "the codec is not used";
    losses_of_int4 = losses;
  }
}

TEST_F(TrainerTest, AStopInTheLastStepIsAFinishedRun) {
  const Outcome result = run("last", {.stop_after = 19});
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.events.back()["event"], "finished");
}

TEST_F(TrainerTest, AFinishedRunThatIsResumedFinishesAgain) {
  const Outcome first = run("done");
  const Outcome again = run("done", {.resume = folder_ / "done"});
  EXPECT_EQ(again.events.size(), 2u) << "started and finished";
  EXPECT_EQ(again.events.back()["p_at_1"], first.events.back()["p_at_1"]);
  EXPECT_EQ(again.checkpoint(), first.checkpoint());
}

TEST_F(TrainerTest, RefusesToEndBeforeTheCheckpoint) {
  const fs::path checkpoint = run("long").checkpoint();
  experiment_.train.epochs = 1;
  EXPECT_THAT(failure(checkpoint),
              AllOf(HasSubstr("has done 20 steps"), HasSubstr("ends after 10"), HasSubstr("train.epochs")));
}

// ---- Replicas
// ------------------------------------------------------------------------------------------------------

class ReplicasTest : public TrainerTest {
 protected:
  ReplicasTest() {
    experiment_.exchange.codec = "int8";
    experiment_.exchange.local_steps = 3;
    experiment_.cluster.replicas = 2;
    experiment_.train.batch = 16;  // 300 samples are nine steps of 2 x 16 and one of 12
  }
};

TEST_F(ReplicasTest, LearnAsOneModelDoes) {
  experiment_.train.epochs = 10;
  experiment_.train.checkpoint_every = 1000;
  experiment_.cluster.replicas = 1;
  experiment_.train.batch = 32;
  const double one = run("one").events.back()["p_at_1"];
  experiment_.train.batch = 16;
  experiment_.cluster.replicas = 2;
  int runs = 0;
  for (const int size : {2, 6}) {
    const Outcome result = run("two" + std::to_string(runs++), {.size = size});
    EXPECT_EQ(result.events.front()["replicas"], 2);
    EXPECT_EQ(result.events.front()["nodes"], size);
    EXPECT_EQ(result.events.back()["steps"], 100);
    EXPECT_EQ(result.of_kind("progress")[0]["nodes"].size(), static_cast<size_t>(size));
    EXPECT_GT(result.events.back()["bytes_sent_per_node_per_step"], 0);
    EXPECT_NEAR(result.events.back()["p_at_1"], one, 0.1);
    // A checkpoint is that of one model, whoever wrote it.
    Experiment alone = experiment_;
    alone.cluster.replicas = 1;
    alone.train.batch = 32;
    const Outcome resumed = [&] {
      const Experiment own = std::exchange(experiment_, alone);
      const Outcome again = run("again" + std::to_string(runs++), {.resume = result.checkpoint()});
      experiment_ = own;
      return again;
    }();
    EXPECT_EQ(resumed.events.back()["p_at_1"], result.events.back()["p_at_1"]);
  }
}

TEST_F(ReplicasTest, GoOnToTheBitFromACheckpoint) {
  struct Mode {
    SamplingMode sampling;
    Precision precision;
  };
  int runs = 0;
  for (const Mode& mode : {Mode{SamplingMode::kUniform, Precision::kFp32},
                           {SamplingMode::kLsh, Precision::kFp32},
                           {SamplingMode::kLsh, Precision::kBf16}}) {
    experiment_.sampling.mode = mode.sampling;
    experiment_.model.precision = mode.precision;
    experiment_.train.epochs = 2;
    const std::string name = "whole" + std::to_string(runs++);
    const Outcome whole = run(name, {.size = 4});
    // The checkpoint of the first epoch, continued elsewhere.
    const fs::path middle = shard::checkpoint_of_step(folder_ / name / "checkpoints", 10);
    const Outcome rest = run(name + "-rest", {.size = 4, .threads = kSeveralThreads, .resume = middle});
    EXPECT_EQ(rest.events.front()["step"], 10);
    const std::vector<double> losses = whole.losses();
    EXPECT_EQ(rest.losses(), std::vector<double>(losses.begin() + 10, losses.end()));
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
  }
}

// Between the steps at which they synchronise, replicas need nothing of each other; and it makes no
// difference to what they learn who is ahead, nor how often somebody asks how it goes.
TEST_F(ReplicasTest, RunApartAndSettleAllTheSame) {
  experiment_.exchange.local_steps = 8;
  const Outcome together = run("together", {.size = 2});
  experiment_.train.log_every = 1000;
  const Outcome apart = run("apart", {.size = 2, .others_wait_for = 8});
  EXPECT_EQ(apart.losses().size(), 1u) << "at the end";
  ASSERT_EQ(apart.of_kind("epoch").size(), 2u);
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    const json one = apart.of_kind("epoch")[epoch], other = together.of_kind("epoch")[epoch];
    for (const char* field : {"step", "loss", "p_at_1", "p_at_3", "p_at_5"})
      EXPECT_EQ(one[field], other[field]) << "epoch " << epoch << ", " << field;
    const uint64_t step = 10 * (epoch + 1);
    expect_same_modelets(shard::checkpoint_of_step(folder_ / "apart" / "checkpoints", step),
                         shard::checkpoint_of_step(folder_ / "together" / "checkpoints", step));
  }
}

TEST_F(ReplicasTest, StopTogetherWhoeverIsAsked) {
  experiment_.exchange.local_steps = 4;
  for (const int stopper : {0, 1, 3}) {
    const std::string name = "stop" + std::to_string(stopper);
    const Outcome part = run(name, {.size = 4, .stop_after = 4, .stopper = stopper});
    ASSERT_TRUE(part.interrupted) << "asked: " << stopper;
    EXPECT_EQ(part.events.back()["event"], "interrupted");
    EXPECT_EQ(part.events.back()["step"], 8) << "where replicas meet next";
    const Outcome rest = run(name, {.size = 2, .resume = folder_ / name});
    EXPECT_EQ(rest.events.back()["steps"], 20);
  }
}

TEST_F(ReplicasTest, EndEarlyTogether) {
  experiment_.data.validation = 0.2f;
  experiment_.train.epochs = 40;
  experiment_.train.patience = 3;
  const Outcome result = run("early", {.size = 4});
  const json& last = result.events.back();
  EXPECT_LT(last["steps"], 40 * 8);
  EXPECT_EQ(result.checkpoint(),
            shard::checkpoint_of_step(folder_ / "early" / "checkpoints", last["best_step"].get<uint64_t>()));
}

// Before anything has travelled.
TEST_F(ReplicasTest, WhatANodeSaysThatItTakesHasTheBuffersOfSynchronising) {
  Trainer trainer({.run = "memory",
                   .experiment = experiment_,
                   .shape = shape_,
                   .owner = round_robin(experiment_, shape_, 1),
                   .rank = 1,
                   .size = 2,
                   .threads = 1,
                   .out = folder_ / "memory"});
  trainer.prepare();
  uint64_t modelets = 0, buffers = 0;
  for (const ModeletSpec& modelet : cut_model(experiment_, shape_)) {
    modelets += modelet_bytes(modelet, experiment_);
    buffers = std::max(buffers, sync_buffer_bytes(modelet, experiment_));
  }
  const auto planned = static_cast<double>(modelets + buffers);
  EXPECT_NEAR(static_cast<double>(trainer.memory_bytes()), planned, 0.2 * planned);
  EXPECT_GT(static_cast<double>(buffers), 0.4 * planned) << "else the test says nothing";
}

TEST_F(ReplicasTest, ALostReplicaIsNamed) {
  experiment_.exchange.timeout_seconds = 0.5;
  auto groups = comm::make_inproc_groups(4, {.run = 1,
                                             .timeout_seconds = 0.5,
                                             .column_patience = 1,
                                             .node_names = {"alpha", "beta", "gamma", "delta"}});
  std::atomic<int> named = 0;
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    Trainer trainer({.run = "lost",
                     .experiment = experiment_,
                     .shape = shape_,
                     .owner = round_robin(experiment_, shape_, 2),
                     .rank = group.rank(),
                     .size = 4,
                     .threads = 1,
                     .out = folder_ / "lost",
                     .resume = {}});
    trainer.prepare();
    try {
      trainer.run(group, [&](const json& event) {
        // Rank 0 ends in the middle of the run: its replica and its peer miss it.
        if (event["event"] == "progress" && event["step"] == 4) throw Error("gone");
      });
      ADD_FAILURE() << "the run went on without a rank";
    } catch (const PeerError& error) {
      named += std::string(error.what()).find("alpha") != std::string::npos;
    } catch (const Error&) {
      EXPECT_EQ(group.rank(), 0);
    }
  });
  EXPECT_GE(named, 2) << "rank 1 shares its replica, rank 2 its modelets";
}

TEST_F(ReplicasTest, RefuseGroupsThatAreNotEqual) {
  try {
    run("three", {.size = 3});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cluster.replicas is 2"), HasSubstr("3 node(s)")));
  }
  const fs::path checkpoint = run("two", {.size = 2}).checkpoint();
  experiment_.cluster.replicas = 1;
  EXPECT_THAT(failure(checkpoint), HasSubstr("train.batch x cluster.replicas"));
}

// ---- What does not fit

TEST_F(TrainerTest, RefusesOtherDataThanPlanned) {
  ++shape_.train_rows;
  EXPECT_THROW(run("other"), Error);
  EXPECT_THAT(failure({}),
              AllOf(HasSubstr("not the data that the run was planned for"), HasSubstr("300 samples")));
}

TEST_F(TrainerTest, RefusesACheckpointOfAnotherRun) {
  const fs::path checkpoint = run("first").checkpoint();
  const Experiment own = experiment_;
  experiment_.modelets.output_modelets = 4;
  EXPECT_THAT(failure(checkpoint), HasSubstr("another cut"));
  experiment_ = own;
  experiment_.optimizer.kind = OptimizerKind::kSgd;  // whose only state has the name of Adam's first
  EXPECT_THAT(failure(checkpoint), HasSubstr("another optimizer.kind"));
  experiment_ = own;
  experiment_.train.seed = 2;
  EXPECT_THAT(failure(checkpoint), HasSubstr("another train.seed"));
  experiment_ = own;
  experiment_.train.batch = 16;
  EXPECT_THAT(failure(checkpoint), HasSubstr("another train.batch"));
  experiment_ = own;
  experiment_.model.loss = Loss::kSigmoid;
  EXPECT_THAT(failure(checkpoint), HasSubstr("another model.loss"));
  experiment_ = own;
  write_data({.rows_train = 310,
              .rows_test = 100,
              .features = 200,
              .labels = 60,
              .features_per_row = 12,
              .labels_per_row = 1.5,
              .noise = 0.1});
  EXPECT_THAT(failure(checkpoint), HasSubstr("another number of training samples"));
  write_data({.rows_train = 300,
              .rows_test = 100,
              .features = 210,
              .labels = 60,
              .features_per_row = 12,
              .labels_per_row = 1.5,
              .noise = 0.1});
  EXPECT_THAT(failure(checkpoint), HasSubstr("other data"));
  EXPECT_THAT(failure(folder_ / "nowhere"), HasSubstr("no such folder"));
}

TEST_F(TrainerTest, RefusesOtherPreviewsButBuildsMissingOnes) {
  const fs::path without = run("without").checkpoint();
  experiment_.sampling.mode = SamplingMode::kLsh;
  const fs::path with = run("with").checkpoint();
  EXPECT_EQ(run("built", {.resume = without}).events.back()["event"], "finished");
  experiment_.sampling.rank += 16;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.rank"));
  experiment_.sampling.retrieval = RetrievalKind::kTables;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.retrieval"));
}

TEST_F(TrainerTest, RefusesOtherHashTablesButBuildsMissingOnes) {
  const fs::path without = run("without").checkpoint();
  experiment_.sampling.mode = SamplingMode::kLsh;
  experiment_.sampling.retrieval = RetrievalKind::kTables;
  const fs::path with = run("with").checkpoint();
  EXPECT_EQ(run("built", {.resume = without}).events.back()["event"], "finished");
  experiment_.sampling.family = HashFamilyKind::kMinHash;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.family"));
  experiment_.sampling.family = Experiment().sampling.family;
  experiment_.sampling.tables = 9;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.tables"));
}

TEST_F(TrainerTest, RefusesADamagedCheckpoint) {
  const fs::path checkpoint = run("damaged").checkpoint();
  for (const ModeletSpec& spec : cut_model(experiment_, shape_)) {
    const fs::path file = checkpoint / (spec.name() + ".safetensors");
    const std::string good = bytes_of(file);
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    std::ofstream(file, std::ios::binary) << bad;
    EXPECT_THAT(failure(checkpoint), AllOf(HasSubstr(file.filename().string()), HasSubstr("checksum")));
    std::ofstream(file, std::ios::binary) << good.substr(0, good.size() / 2);
    EXPECT_THAT(failure(checkpoint), HasSubstr(file.filename().string()));
    std::ofstream(file, std::ios::binary) << good;
  }
  EXPECT_EQ(failure(checkpoint), "no error") << "repaired";
}

}  // namespace
}  // namespace modelet::agent::testing
