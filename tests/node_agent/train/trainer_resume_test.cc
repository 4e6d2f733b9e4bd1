// Trainer: runs that validate, end early, are stopped or killed, and continue.
#include "shard/modelet/state.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

class ValidationTest : public TrainerTest {
 protected:
  ValidationTest() {
    experiment_.data.validation = 0.2f;  // 60 of 300 samples; an epoch is 8 steps
    experiment_.train.epochs = 40;
    experiment_.train.patience = 3;
    experiment_.train.metric = "p_at_3";
    experiment_.train.keep_checkpoints = 1;
  }

  // The step of the first epoch with the highest validation figure.
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

    // A run that has exactly these steps.
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
    const std::string name = "stopped" + std::to_string(stop_after);
    ASSERT_TRUE(run(name, {.stop_after = stop_after}).interrupted);
    // Resumes into another folder: the best checkpoint comes along.
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

  // Runs that are killed while the best epoch or the last one is validated; then runs that only write
  // checkpoints of the best epochs.
  struct Kill {
    uint64_t step, resumed_at;
    uint32_t checkpoint_every;
  };
  for (const Kill& kill : {Kill{best, best, 0}, Kill{end, end, 0}, Kill{end, best, 1000}}) {
    experiment_.train.checkpoint_every = kill.checkpoint_every;
    const std::string name = "killed" + std::to_string(kill.step + kill.checkpoint_every);
    run(name, {.dies_at = "epoch " + std::to_string(kill.step)});
    for (const std::string& into : {name + "-elsewhere", name}) {
      const Outcome rest = run(into, {.size = 2, .resume = folder_ / name});
      EXPECT_EQ(rest.events.front()["step"], kill.resumed_at);
      EXPECT_EQ(rest.events.back()["best_step"], best);
      EXPECT_EQ(rest.events.back()["steps"], end);
      EXPECT_EQ(rest.checkpoint(), shard::checkpoint_of_step(folder_ / into / "checkpoints", best));
      EXPECT_TRUE(fs::exists(rest.checkpoint() / "index.json"));
      EXPECT_EQ(shard::find_model(folder_ / into), rest.checkpoint());
      EXPECT_EQ(checkpoints(into).size(), 2u) << "the best and the newest";
    }
  }
  experiment_.train.checkpoint_every = 0;

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
  bool direct = false;  // centroids and classifiers, with a prior
};

class ResumeTest : public TrainerTest, public ::testing::WithParamInterface<Resume> {};

TEST_P(ResumeTest, GoesOnToTheBitAsIfItHadNotStopped) {
  experiment_.sampling.mode = GetParam().mode;
  experiment_.optimizer.kind = GetParam().optimizer;
  experiment_.model.precision = GetParam().precision;
  experiment_.model.hidden = {32, 16};
  experiment_.model.centroids = GetParam().direct;
  experiment_.model.classifiers = GetParam().direct ? 2 : 0;
  experiment_.sampling.prior = GetParam().direct ? 0.5f : 0;
  const Outcome whole = run("whole");
  ASSERT_EQ(whole.losses().size(), 20u);
  // A re-hash begins after step 5 and takes effect after step 10. So at step 8 one is pending, and at step 10
  // the next has just begun.
  for (const uint64_t stop_after : {7, 9, 12}) {
    const std::string name = "stopped" + std::to_string(stop_after);
    const Outcome stopped = run(name, {.stop_after = stop_after});
    ASSERT_TRUE(stopped.interrupted);
    EXPECT_EQ(stopped.events.back()["event"], "interrupted");
    EXPECT_EQ(stopped.events.back()["step"], stop_after + 1) << "at the next step boundary";
    const Outcome rest = run(name, {.threads = kSeveralThreads, .resume = folder_ / name});
    EXPECT_EQ(rest.events.front()["step"], stop_after + 1);
    std::vector<double> losses = stopped.losses();
    for (const double loss : rest.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses());
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
    EXPECT_EQ(rest.events.back()["p_at_1"], whole.events.back()["p_at_1"]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, ResumeTest,
    ::testing::Values(Resume{SamplingMode::kUniform, OptimizerKind::kAdam},
                      Resume{SamplingMode::kUniform, OptimizerKind::kAdagrad},
                      Resume{SamplingMode::kUniform, OptimizerKind::kSgd},
                      Resume{SamplingMode::kLsh, OptimizerKind::kAdam},
                      Resume{SamplingMode::kLsh, OptimizerKind::kSgd},
                      Resume{SamplingMode::kLshPerSample, OptimizerKind::kAdagrad},
                      Resume{SamplingMode::kLsh, OptimizerKind::kAdam, Precision::kBf16},
                      Resume{SamplingMode::kUniform, OptimizerKind::kSgd, Precision::kBf16},
                      Resume{SamplingMode::kUniform, OptimizerKind::kAdam, Precision::kBf16, true},
                      Resume{SamplingMode::kLsh, OptimizerKind::kSgd, Precision::kFp32, true}));

// Pairs are stored with the modelets. One rank continues with the pairs that four ranks wrote, and no rank
// finds them anew.
TEST_F(TrainerTest, PairsAreThoseOfTheCheckpointAndOfTheSamplesThatAreTrainedOn) {
  experiment_.model.centroids = true;
  experiment_.data.validation = 0.2f;
  const Outcome whole = run("whole", {.size = 4}), stopped = run("stopped", {.size = 4, .stop_after = 7}),
                rest = run("stopped", {.resume = folder_ / "stopped"});
  ASSERT_TRUE(stopped.interrupted);
  EXPECT_NEAR(rest.events.back()["p_at_3"].get<double>(), whole.events.back()["p_at_3"].get<double>(), 0.02);
  uint64_t samples = 0, labels = 0;
  const shard::Dataset train = shard::Dataset::open(experiment_.data.train);
  for (const uint32_t row : shard::split_rows(train.rows(), 0.2f, experiment_.train.seed).train)
    labels += train.label_count(row);
  const shard::Checkpoint before = shard::Checkpoint::open(stopped.checkpoint()),
                          after = shard::Checkpoint::open(rest.checkpoint());
  for (const shard::CheckpointEntry& entry : before.index().modelets) {
    if (entry.spec.kind != LayerKind::kOutput) continue;
    const auto then = before.open_modelet(entry.spec), now = after.open_modelet(entry.spec);
    for (const char* name : {"pairs.offsets", "pairs.features", "pairs.positives", "pairs.sums"})
      EXPECT_TRUE(std::ranges::equal(then.at(name).bytes, now.at(name).bytes)) << name;
    for (const uint32_t of_label : now.values<uint32_t>("pairs.positives", {entry.spec.neurons()}))
      samples += of_label;
  }
  EXPECT_EQ(samples, labels) << "no sample that is held out";
  experiment_.model.classifiers = 1;
  EXPECT_THAT(failure(folder_ / "whole"), HasSubstr("another model.classifiers"));
  experiment_.model.classifiers = 0;
  experiment_.model.exclude_own = true;
  EXPECT_THAT(failure(folder_ / "whole"), HasSubstr("another model.exclude_own"));
}

// Each rank fits the classifiers of its own labels. What the network takes for samples of them follows from the
// best labels of all ranks.
TEST_F(TrainerTest, ClassifiersDoNotDependOnRanksAndFollowFromTheWeights) {
  experiment_.model.centroids = true;
  experiment_.model.loss = Loss::kSigmoid;
  experiment_.train.evaluate_every = 1;
  const Outcome without = run("without");
  experiment_.model.classifiers = 2;
  const Outcome alone = run("alone");
  EXPECT_EQ(alone.losses(), without.losses()) << "training does not know of them";
  EXPECT_NE(alone.events.back()["p_at_3"], without.events.back()["p_at_3"]);

  const Outcome together = run("together", {.size = 3});
  EXPECT_NEAR(together.events.back()["p_at_3"].get<double>(), alone.events.back()["p_at_3"].get<double>(),
              0.01);
  const shard::Checkpoint one = shard::Checkpoint::open(alone.checkpoint()),
                          three = shard::Checkpoint::open(together.checkpoint());
  size_t weights = 0;
  for (const shard::CheckpointEntry& entry : one.index().modelets) {
    if (entry.spec.kind != LayerKind::kOutput) continue;
    const auto a = one.open_modelet(entry.spec), b = three.open_modelet(entry.spec);
    const uint64_t neurons = entry.spec.neurons(), pairs = a.at("pairs.classifiers").shape[0];
    for (const auto& [name, count] :
         {std::pair("pairs.classifiers", pairs), {"pairs.classifier_bias", neurons}}) {
      const auto x = a.values<float>(name, {count}), y = b.values<float>(name, {count});
      for (size_t i = 0; i < count; ++i) ASSERT_NEAR(x[i], y[i], 0.02) << name << " of " << entry.file;
    }
    weights += static_cast<size_t>(std::ranges::count_if(a.values<float>("pairs.classifiers", {pairs}),
                                                         [](float weight) { return weight != 0; }));
  }
  EXPECT_GT(weights, 1000u);

  // A finished run that is tested again finds the same.
  EXPECT_EQ(run("alone", {.resume = folder_ / "alone"}).events.back()["p_at_3"],
            alone.events.back()["p_at_3"]);
}

TEST_F(TrainerTest, ACheckpointOfFourRanksGoesOnWithOneAndTheOtherWayRound) {
  experiment_.sampling.mode = SamplingMode::kLsh;
  const std::vector<double> whole = run("whole").losses();
  for (const int before : {1, 4}) {
    const int after = before == 1 ? 4 : 1;
    const std::string name = "from" + std::to_string(before);
    const Outcome stopped = run(name, {.size = before, .stop_after = 7, .stopper = before - 1});
    ASSERT_TRUE(stopped.interrupted) << "any rank can ask for a stop";

    // A checkpoint that is read and written again has the same bytes.
    const shard::Checkpoint checkpoint = shard::Checkpoint::open(stopped.checkpoint());
    auto ranks = make_ranks(experiment_, shape_, round_robin(experiment_, shape_, 1), 1, 1,
                            shard::stored_feature_rows(checkpoint));
    const shard::CheckpointWriter writer(folder_ / (name + "-again"), 8);
    for (const auto& modelet : ranks[0]->network.modelets()) {
      shard::restore_modelet(*modelet, checkpoint);
      shard::save_modelet(*modelet, writer);
    }
    expect_same_modelets(stopped.checkpoint(), folder_ / (name + "-again") / ".step-0000000008.partial");

    const Outcome rest = run(name, {.size = after, .resume = stopped.checkpoint()});
    std::vector<double> losses = stopped.losses();
    for (const double loss : rest.losses()) losses.push_back(loss);
    ASSERT_EQ(losses.size(), whole.size());
    for (size_t s = 0; s < whole.size(); ++s)
      EXPECT_NEAR(losses[s], whole[s], 1e-4 * whole[s]) << "step " << s;
  }
}

// Codecs keep nothing between steps, and their random draws depend on the step. So a run with lossy exchanges
// can be repeated too.
TEST_F(TrainerTest, ResumingWithLossyCodecsGoesOnToTheBit) {
  experiment_.exchange.codec = CodecKind::kInt8;
  experiment_.model.hidden = {32, 16};
  std::vector<double> losses_of_int4;
  for (const CodecKind codec : {CodecKind::kInt4, CodecKind::kSame}) {
    experiment_.exchange.gradient_codec = codec;
    const std::string gradients(spelling(codec));
    const Outcome whole = run("whole-" + gradients, {.size = 2});
    const Outcome stopped = run(gradients, {.size = 2, .stop_after = 7});
    ASSERT_TRUE(stopped.interrupted);
    const Outcome rest = run(gradients, {.size = 2, .resume = folder_ / gradients});
    std::vector<double> losses = stopped.losses();
    for (const double loss : rest.losses()) losses.push_back(loss);
    EXPECT_EQ(losses, whole.losses());
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
    EXPECT_NE(losses, losses_of_int4) << "the codec is not used";
    losses_of_int4 = losses;
  }
}

// An evaluation may take longer than the epoch before it. A run that is killed during the evaluation still
// has the epoch.
TEST_F(TrainerTest, ARunThatDiesInTheEvaluationOfAnEpochGoesOnWithThat) {
  const Outcome whole = run("whole");
  const std::vector<json> epochs = whole.of_kind("epoch");
  for (const uint64_t step : {10, 20})
    // Dies when the checkpoint has just been written, and when the evaluation is about to be reported.
    for (const std::string kind : {"checkpoint", "epoch"}) {
      const std::string name = kind + std::to_string(step);
      const Outcome killed = run(name, {.dies_at = kind + " " + std::to_string(step)});
      EXPECT_EQ(killed.losses().size(), step);
      for (const std::string& into : {name + "-elsewhere", name}) {
        const Outcome rest = run(into, {.resume = folder_ / name});
        EXPECT_EQ(rest.events.front()["step"], step) << "nothing is trained again";
        const json epoch = rest.of_kind("epoch").at(0);
        EXPECT_EQ(rest.events[1], epoch) << "the evaluation comes first";
        for (const char* field : {"epoch", "step", "loss", "p_at_1", "p_at_5"})
          EXPECT_EQ(epoch[field], epochs[step / 10 - 1][field]) << field;
        EXPECT_EQ(rest.of_kind("epoch").size(), 2 - step / 10 + 1);
        expect_same_modelets(rest.checkpoint(), whole.checkpoint());
        EXPECT_EQ(rest.events.back()["p_at_1"], whole.events.back()["p_at_1"]);
      }
    }
}

TEST_F(TrainerTest, AStopAtTheEndOfAnEpochDoesNotWaitForItsEvaluation) {
  const Outcome whole = run("whole");
  const Outcome stopped = run("stopped", {.stop_after = 9});
  ASSERT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.events.back()["step"], 10);
  EXPECT_TRUE(stopped.of_kind("epoch").empty());
  const Outcome rest = run("stopped", {.size = 2, .resume = folder_ / "stopped"});
  ASSERT_EQ(rest.of_kind("epoch").size(), 2u);
  for (const char* field : {"epoch", "step", "loss", "p_at_1"})
    EXPECT_EQ(rest.of_kind("epoch")[0][field], whole.of_kind("epoch")[0][field]) << field;
}

// Only the evaluation is left, and that may take long.
TEST_F(TrainerTest, AStopInTheLastStepLeavesTheEvaluationForLater) {
  const Outcome whole = run("whole"), stopped = run("last", {.stop_after = 19});
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.events.back()["step"], 20);
  const Outcome rest = run("last", {.resume = folder_ / "last"});
  EXPECT_TRUE(rest.losses().empty());
  EXPECT_EQ(rest.events.back()["p_at_1"], whole.events.back()["p_at_1"]);
  expect_same_modelets(rest.checkpoint(), whole.checkpoint());
}

// Evaluations of a batch take a look at the clock, and so are reported one by one. A stop ends them and the fits of
// classifiers at their next batch, on all ranks, and nothing is lost: the run that goes on is the undisturbed one.
TEST_F(TrainerTest, AStopEndsAnEvaluationAndAFitOfClassifiers) {
  write_data({.rows_train = 600,
              .rows_test = 1200,
              .features = 200,
              .labels = 60,
              .features_per_row = 12,
              .labels_per_row = 1.5,
              .noise = 0.1});
  experiment_.model.centroids = true;
  experiment_.model.loss = Loss::kSigmoid;
  experiment_.model.classifiers = 2;
  experiment_.train.evaluate_every = 1;
  for (const int size : {1, 3}) {
    const std::string ranks = std::to_string(size);
    const Outcome whole = run("whole" + ranks, {.size = size, .seconds_per_look = 10});
    for (const std::string data : {"training", "test"}) {
      SCOPED_TRACE(data + " on " + ranks);
      const std::string name = data + ranks;
      const auto of_first_epoch = [&](const json& event) {
        return event["event"] == "evaluating" && event["data"] == data && event["step"] == 19;
      };
      const Outcome stopped = run(name, {.size = size, .stop_at = of_first_epoch, .seconds_per_look = 10});
      ASSERT_TRUE(stopped.interrupted);
      EXPECT_TRUE(stopped.of_kind("epoch").empty());
      EXPECT_EQ(stopped.events.back()["step"], 19);
      const shard::Checkpoint left = shard::Checkpoint::open(stopped.checkpoint());
      for (const shard::CheckpointEntry& entry : left.index().modelets) {
        if (entry.spec.kind != LayerKind::kOutput) continue;
        const auto part = left.open_modelet(entry.spec);
        const auto biases = part.values<float>("pairs.classifier_bias", {entry.spec.neurons()});
        EXPECT_EQ(std::ranges::any_of(biases, [](float bias) { return bias != 0; }), data == "test")
            << "either all classifiers are fitted or none";
      }
      const Outcome rest = run(name, {.size = size, .resume = folder_ / name});
      ASSERT_EQ(rest.of_kind("epoch").size(), 2u);
      for (const size_t epoch : {0, 1})
        for (const char* field : {"epoch", "step", "loss", "p_at_1", "p_at_5"})
          EXPECT_EQ(rest.of_kind("epoch")[epoch][field], whole.of_kind("epoch")[epoch][field]) << field;
      expect_same_modelets(rest.checkpoint(), whole.checkpoint());
    }
  }
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

}  // namespace
}  // namespace modelet::agent::testing
