// Trainer from the data to the last checkpoint, alone and on several ranks in this process: what it learns,
// what it reports, what it refuses. trainer_resume_test.cc and trainer_replicas_test.cc test the rest.
#include "node_agent/train/trainer.h"

#include <map>

#include "shard/inference/model.h"
#include "tests/error_of.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

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
  for (const SamplingMode mode : all_values<SamplingMode>())
    for (const Loss loss : all_values<Loss>()) {
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
    EXPECT_THAT(order, ElementsAre("started 0", "progress 4", "progress 8", "checkpoint 10", "epoch 10",
                                   "progress 12", "progress 16", "progress 20", "checkpoint 20", "epoch 20",
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
    EXPECT_EQ(first["parameters"], (shape_.input_rows() + 1) * 32 + 33 * 60);
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

// A rank reports early by its own clock only if the report needs no other rank. Such a report has no "nodes".
TEST_F(TrainerTest, SlowStepsAreReportedBeforeTheyAreDueByCount) {
  const std::vector<double> each = run("each").losses();
  experiment_.train.log_every = 12;
  for (const int size : {1, 3}) {
    const std::string name = "slow" + std::to_string(size);
    const Outcome result = run(name, {.size = size, .seconds_per_step = 2});
    std::vector<uint64_t> steps;
    for (const json& event : result.of_kind("progress")) {
      const uint64_t step = event["step"];
      steps.push_back(step);
      EXPECT_EQ(event.contains("nodes"), step % 12 == 0 || step == 20) << event;
      EXPECT_EQ(event["train_seconds"], 2 * step);
      EXPECT_EQ(event["eta_seconds"], 2 * (20 - step));
      if (size > 1) continue;
      const uint64_t first = step <= 12 ? 0 : 12;
      const auto begin = each.begin() + static_cast<ptrdiff_t>(first),
                 end = each.begin() + static_cast<ptrdiff_t>(step);
      EXPECT_EQ(event["loss"], std::accumulate(begin, end, 0.0) / static_cast<double>(step - first)) << step;
    }
    EXPECT_THAT(steps, ElementsAre(3, 6, 9, 12, 15, 18, 20));
    const Outcome quick = run(name + "-quick", {.size = size});
    EXPECT_EQ(quick.of_kind("progress").size(), 2u);
    expect_same_modelets(result.checkpoint(), quick.checkpoint());
  }
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

TEST_F(TrainerTest, AStopEndsThePreparation) {
  const TrainJob job{.run = "early",
                     .experiment = experiment_,
                     .shape = shape_,
                     .owner = round_robin(experiment_, shape_, 1),
                     .out = folder_ / "early"};
  Trainer trainer(job);
  trainer.request_stop();
  EXPECT_THROW(trainer.prepare(), Interrupted);
  EXPECT_FALSE(fs::exists(folder_ / "early"));
}

TEST_F(TrainerTest, CheckpointsBeforeTheFirstEvaluationLackClassifiers) {
  experiment_.model.centroids = true;
  experiment_.model.classifiers = 2;
  experiment_.train.evaluate_every = 0;
  experiment_.train.checkpoint_every = 5;
  experiment_.train.keep_checkpoints = 4;
  const fs::path last = run("classifiers").checkpoint();
  const auto said = [](const fs::path& checkpoint) {
    ::testing::internal::CaptureStdout();  // where the log goes in tests
    shard::Model{checkpoint};
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(said(last.parent_path() / "step-0000000015"),
              HasSubstr("before the model's linear classifiers"));
  EXPECT_EQ(said(last), "");
}

// A file in the place of the folder stands for a full disk.
TEST_F(TrainerTest, ACheckpointThatCannotBeWrittenIsLeftOut) {
  experiment_.train.checkpoint_every = 5;
  experiment_.train.keep_checkpoints = 10;
  const Outcome whole = run("whole", {.size = 3});
  for (const int size : {1, 3}) {
    const std::string name = "full" + std::to_string(size);
    const fs::path folder = folder_ / name / "checkpoints", aside = folder_ / "aside";
    const Outcome result = run(name, {.size = size, .on_event = [&](const json& event) {
                                        if (event["event"] != "progress") return;
                                        if (event["step"] == 8) {
                                          fs::rename(folder, aside);
                                          AtomicFile(folder).commit();
                                        } else if (event["step"] == 13) {
                                          fs::remove(folder);
                                          fs::rename(aside, folder);
                                        }
                                      }});
    EXPECT_THAT(checkpoints(name), ElementsAre("step-0000000005", "step-0000000015", "step-0000000020"));
    EXPECT_EQ(result.of_kind("epoch").size(), 2);
    if (size == 3) expect_same_modelets(result.checkpoint(), whole.checkpoint());
  }
}

TEST_F(TrainerTest, ResultsThatCannotBeWrittenAreTriedAgainAndThenAnError) {
  const fs::path folder = folder_ / "run" / "checkpoints", aside = folder_ / "aside";
  try {
    run("run", {.size = 2, .on_event = [&](const json& event) {
                  if (event["event"] != "progress" || event["step"] != 18) return;
                  fs::rename(folder, aside);
                  AtomicFile(folder).commit();
                }});
    ADD_FAILURE() << "no error";
  } catch (const PeerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("could not write its part of the state after step 20"));
  }
  fs::remove(folder);
  fs::rename(aside, folder);
  EXPECT_THAT(checkpoints("run"), ElementsAre("step-0000000010"));
}

// The loss is that before the update, so the last step may spoil the weights without a sign.
TEST_F(TrainerTest, WeightsThatAreNotFiniteEndTheRunInsteadOfACheckpoint) {
  prepare("2 3 3\n0 0:1e38 1:9e37\n1 1:1e38 2:8e37\n");
  experiment_.optimizer.kind = OptimizerKind::kSgd;
  experiment_.train.learning_rate = 100;
  experiment_.train.epochs = 1;
  experiment_.train.batch = 2;
  experiment_.train.evaluate_every = 0;
  EXPECT_THAT(test::error_of([&] { run("diverges"); }),
              AllOf(HasSubstr("training diverged"), HasSubstr("tensor '"), HasSubstr("train.learning_rate")));
  EXPECT_THAT(checkpoints("diverges"), ElementsAre());
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

// ---- What does not fit

TEST_F(TrainerTest, RefusesOtherDataThanPlanned) {
  ++shape_.train_rows;
  EXPECT_THROW(run("other"), Error);
  EXPECT_THAT(failure({}),
              AllOf(HasSubstr("not the data that the run was planned for"), HasSubstr("300 samples")));
}

TEST_F(TrainerTest, RefusesASoftmaxOverOneLabel) {
  write_data({.rows_train = 20,
              .rows_test = 5,
              .features = 20,
              .labels = 1,
              .features_per_row = 5,
              .labels_per_row = 1});
  EXPECT_THAT(failure({}),
              AllOf(HasSubstr("model.loss is softmax"), HasSubstr("set model.loss = \"sigmoid\"")));
  experiment_.model.loss = Loss::kSigmoid;
  EXPECT_EQ(failure({}), "no error");
}

TEST_F(TrainerTest, OneLabelIsJudgedByAuc) {
  std::string samples = "400 40 1\n";
  for (uint32_t row = 0; row < 400; ++row) {
    Rng rng(0, {row});
    const uint32_t first = rng.below(20), second = 20 + rng.below(20);
    const bool clicked = rng.uniform() < (first + second % 7 < 12 ? 0.8f : 0.2f);
    samples += (clicked ? "0 " : " ") + std::to_string(first) + ":1 " + std::to_string(second) + ":1\n";
  }
  prepare(samples);
  experiment_.model.loss = Loss::kSigmoid;
  experiment_.data.validation = 0.3f;
  experiment_.train.epochs = 6;
  experiment_.train.learning_rate = 0.002f;
  const Outcome outcome = run("clicks");
  double best = 0;
  uint64_t step = 0;
  for (const json& epoch : outcome.of_kind("epoch"))
    if (const double auc = epoch.at("validation").at("auc"); auc > best) best = auc, step = epoch.at("step");
  EXPECT_EQ(outcome.events.back().at("best_step"), step);
  EXPECT_GT(step, outcome.of_kind("epoch").front().at("step"));
  experiment_.train.metric = "p_at_1";
  experiment_.train.epochs = 7;
  EXPECT_GE(run("as before", {.resume = folder_ / "clicks"}).events.back().at("best_step"), step);
  experiment_.train.metric = "p_at_3";
  EXPECT_THAT(failure({}), HasSubstr("train.metric is 'p_at_3'; this model can be judged by auc"));
}

TEST_F(TrainerTest, ExcludesItemsWithPositiveValuesOnly) {
  experiment_.model.centroids = experiment_.model.exclude_own = true;
  EXPECT_EQ(failure({}), "no error");
  fs::remove_all(folder_ / "fails");
  prepare("3 200 60\n1,2 3:1 4:2\n5 6:1 7:-0.5\n2 8:0.5\n");
  EXPECT_THAT(failure({}), AllOf(HasSubstr("model.exclude_own needs positive values"),
                                 HasSubstr("feature 7 of sample 1"), HasSubstr("-0.5")));
  experiment_.model.exclude_own = false;
  EXPECT_EQ(failure({}), "no error");
}

TEST_F(TrainerTest, RefusesACheckpointOfAnotherRun) {
  const fs::path checkpoint = run("first").checkpoint();
  const Experiment own = experiment_;
  experiment_.modelets.output_modelets = 4;
  EXPECT_THAT(failure(checkpoint), HasSubstr("another partition"));
  experiment_ = own;
  experiment_.model.hidden = {48};
  EXPECT_THAT(failure(checkpoint), HasSubstr("another model.hidden"));
  experiment_ = own;
  experiment_.optimizer.kind = OptimizerKind::kSgd;  // its only state has the name of the first state of Adam
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
  experiment_.model.precision = Precision::kBf16;
  EXPECT_THAT(failure(checkpoint), HasSubstr("another model.precision"));
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
  EXPECT_THAT(failure(checkpoint), HasSubstr("another number of features or labels"));
  EXPECT_THAT(failure(folder_ / "nowhere"), HasSubstr("no such folder"));
}

TEST_F(TrainerTest, RefusesOtherSamplesOfTheSameShape) {
  const fs::path checkpoint = run("first").checkpoint();
  const DataShape before = shape_;
  const auto write = [&](uint64_t seed) {
    write_data({.rows_train = 300,
                .rows_test = 100,
                .features = 200,
                .labels = 60,
                .features_per_row = 12,
                .labels_per_row = 1.5,
                .noise = 0.1,
                .seed = seed});
  };
  write(shard::SynthOptions().seed);
  EXPECT_EQ(shape_.fingerprint, before.fingerprint) << "prepared again";
  write(7);
  EXPECT_NE(shape_.fingerprint, before.fingerprint);
  EXPECT_THAT(failure(checkpoint), HasSubstr("another set of training samples"));
  shape_.fingerprint = before.fingerprint;
  EXPECT_THAT(failure({}),
              AllOf(HasSubstr("not the data that the run was planned for"), HasSubstr("other content")));

  // A checkpoint of an earlier version has no fingerprint.
  std::string index = bytes_of(checkpoint / "index.json");
  const size_t begin = index.find("  \"fingerprint\""), end = index.find('\n', begin) + 1;
  ASSERT_LT(begin, end);
  std::ofstream(checkpoint / "index.json") << index.erase(begin, end - begin);
  write(7);
  EXPECT_EQ(failure(checkpoint), "no error");
}

TEST_F(TrainerTest, RefusesOtherProjectionsButBuildsMissingOnes) {
  const fs::path without = run("without").checkpoint();
  experiment_.sampling.mode = SamplingMode::kLsh;
  const fs::path with = run("with").checkpoint();
  EXPECT_EQ(run("built", {.resume = without}).events.back()["event"], "finished");
  experiment_.sampling.common += 6;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.common"));
  experiment_.sampling.common -= 6;
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
  experiment_.sampling.centre = false;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.centre"));
  experiment_.sampling.centre = true;
  experiment_.sampling.tables = 9;
  EXPECT_THAT(failure(with), HasSubstr("another sampling.tables"));
}

// Rows are evaluated 512 at a time, and the clock moves by two seconds at each look.
TEST_F(TrainerTest, ALongEvaluationIsReported) {
  write_data({.rows_train = 300, .rows_test = 5000, .features = 200, .labels = 60, .features_per_row = 12});
  experiment_.train.epochs = 1;
  EXPECT_TRUE(run("fast", {.seconds_per_look = 0.001}).of_kind("evaluating").empty());
  const std::vector<json> events = run("slow", {.seconds_per_look = 2}).of_kind("evaluating");
  ASSERT_EQ(events.size(), 3u) << "of ten batches every third";
  uint64_t before = 0;
  for (const json& event : events) {
    EXPECT_EQ(event.size(), 6u) << event << ": as docs/events.md says";
    EXPECT_EQ(event.at("step"), 10);
    EXPECT_EQ(event.at("data"), "test");
    EXPECT_EQ(event.at("total_rows"), 5000);
    const auto rows = event.at("rows").get<uint64_t>();
    EXPECT_EQ(rows % 512, 0u);
    EXPECT_GT(rows, before);
    EXPECT_NEAR(event.at("eta_seconds").get<double>(), double(5000 - rows) / 512 * 2, 1e-9);
    before = rows;
  }
  experiment_.data.validation = 0.5;
  write_data({.rows_train = 5000, .rows_test = 10, .features = 200, .labels = 60, .features_per_row = 12});
  for (const json& event : run("held out", {.size = 2, .seconds_per_look = 6}).of_kind("evaluating"))
    EXPECT_EQ(event.at("data"), "validation");
}

TEST_F(TrainerTest, ThePreparationOfTextIsReported) {
  ::setenv("MODELET_CACHE", (folder_ / "cache").c_str(), 1);
  shard::write_synth(
      {.rows_train = 9000, .rows_test = 10, .features = 200, .labels = 60, .features_per_row = 12},
      folder_.path(), true);
  experiment_.data.train = folder_ / "train.txt";
  experiment_.data.test = folder_ / "test.txt";
  for (const bool first : {true, false}) {
    Trainer trainer(
        {.experiment = experiment_, .shape = shape_, .owner = round_robin(experiment_, shape_, 1)},
        std::make_unique<StepClock>(0, 1));
    std::vector<json> events;
    // The shape belongs to other data, so this fails after all rows are read.
    EXPECT_THROW(trainer.prepare([&](const json& event) { events.push_back(event); }), Error);
    ASSERT_EQ(events.size(), first ? 2u : 0u) << "after 4096 and 8192 rows, if there is something to do";
    for (const json& event : events) {
      EXPECT_EQ(event.at("event"), "preparing");
      EXPECT_EQ(event.at("file"), experiment_.data.train);
    }
  }
  ::unsetenv("MODELET_CACHE");
}

TEST_F(TrainerTest, RefusesADamagedCheckpoint) {
  const fs::path checkpoint = run("damaged").checkpoint();
  for (const ModeletSpec& spec : partition_model(experiment_, shape_)) {
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

TEST_F(TrainerTest, ADamagedCheckpointNamesTheNewestWholeOneBeforeIt) {
  experiment_.train.checkpoint_every = 5;
  experiment_.train.keep_checkpoints = 4;
  run("damaged");
  const auto checkpoint = [&](uint64_t step) {
    return shard::checkpoint_of_step(folder_ / "damaged" / "checkpoints", step);
  };
  const std::string modelet = partition_model(experiment_, shape_).back().name() + ".safetensors";
  const auto damage = [](const fs::path& file) {
    std::ofstream(file, std::ios::binary | std::ios::ate | std::ios::in) << 'x';
  };
  const auto names = [&](uint64_t step) {
    return HasSubstr("continue with --resume " + checkpoint(step).string() + " and another --out");
  };
  const auto predicting = [&] { shard::Model{folder_ / "damaged"}; };
  const auto names_to_predict = [&](uint64_t step) {
    return ::testing::ThrowsMessage<FormatError>(
        ::testing::EndsWith("the newest whole checkpoint before it is " + checkpoint(step).string()));
  };
  damage(checkpoint(20) / modelet);
  EXPECT_THAT(failure(folder_ / "damaged"),
              AllOf(HasSubstr("step-0000000020"), HasSubstr(modelet), names(15)));
  EXPECT_THAT(predicting, names_to_predict(15));
  fs::remove(checkpoint(15) / modelet);
  EXPECT_THAT(failure(folder_ / "damaged"), names(10));
  fs::remove(checkpoint(20) / modelet);
  EXPECT_THAT(failure(folder_ / "damaged"), AllOf(HasSubstr("No such file"), names(10)));
  // A failure for another reason says nothing about the checkpoint.
  fs::create_symlink(modelet, checkpoint(20) / modelet);
  EXPECT_THAT(failure(folder_ / "damaged"), AllOf(HasSubstr("symbolic links"), Not(HasSubstr("--resume"))));
  damage(checkpoint(20) / "index.json");
  EXPECT_THAT(failure(folder_ / "damaged"), AllOf(HasSubstr("index.json"), names(10)));
  EXPECT_THAT(predicting, names_to_predict(10));
  EXPECT_EQ(run("again", {.resume = checkpoint(10)}).events.back()["steps"], 20) << "as the text says";
  damage(checkpoint(10) / modelet);
  damage(checkpoint(5) / modelet);
  EXPECT_THAT(failure(folder_ / "damaged"), Not(HasSubstr("--resume")));
}

}  // namespace
}  // namespace modelet::agent::testing
